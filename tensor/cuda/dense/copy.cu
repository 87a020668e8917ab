// copy, accumulate and fill of strided tensors of any type. Axes are sorted in the order of the
// result and merged first; then dense runs are copied by packs, transpositions by tiles in shared
// memory, and everything else by one thread per element.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "tensor/cuda/core/packs.cuh"
#include "tensor/kernels/converted.h"
#include "tensor/kernels/dense.h"

namespace brine::cuda {
namespace {

constexpr int kTile = 32;  // side of a tile of a transposition
constexpr int kTileRows = 8;
constexpr int64_t kThin = 8;  // a transposition with fewer rows or columns leaves tiles too empty

// Sizes with the strides of y and of x. The last axis is the innermost of y; never without axes.
struct Walk {
  int axes = 0;
  int64_t size[Shape::kMaxRank] = {}, y[Shape::kMaxRank] = {}, x[Shape::kMaxRank] = {};

  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < axes; ++i) n *= size[i];
    return n;
  }
  void insert(int at, int64_t n, int64_t step_y, int64_t step_x) {
    for (int64_t* of : {size, y, x}) std::copy_backward(of + at, of + axes, of + axes + 1);
    ++axes;
    size[at] = n;
    y[at] = step_y;
    x[at] = step_x;
  }
  void remove(int at) {
    for (int64_t* of : {size, y, x}) std::copy(of + at + 1, of + axes, of + at);
    --axes;
  }
  bool dense() const { return y[axes - 1] == 1 && x[axes - 1] == 1; }
};

// Without axes of size 1, in descending order of the strides of y, neighbours merged if both are
// gapless there.
Walk walk_of(const Tensor& y, const Tensor& x) {
  Walk w;
  for (int i = 0; i < y.rank(); ++i) {
    if (y.dim(i) == 1) continue;
    int at = w.axes;
    while (at > 0 && w.y[at - 1] < y.stride(i)) --at;
    w.insert(at, y.dim(i), y.stride(i), x.stride(i));
  }
  for (int i = w.axes - 1; i > 0; --i) {
    if (w.y[i - 1] != w.size[i] * w.y[i] || w.x[i - 1] != w.size[i] * w.x[i]) continue;
    w.size[i] *= w.size[i - 1];
    w.remove(i - 1);
  }
  if (w.axes == 0) w.insert(0, 1, 1, 1);
  return w;
}

// The offsets of element i in y and in x.
__device__ inline void locate(const Walk& w, int64_t i, int64_t& at_y, int64_t& at_x) {
  at_y = at_x = 0;
  for (int a = w.axes - 1; a > 0; --a) {
    const int64_t above = quotient(i, w.size[a]), index = i - above * w.size[a];
    at_y += index * w.y[a];
    at_x += index * w.x[a];
    i = above;
  }
  at_y += i * w.y[0];
  at_x += i * w.x[0];
}

// The conversion of an element of y.
struct Assign {
  static constexpr bool reads = false;
  template <class To, class From>
  __device__ void operator()(To& y, const From& x) const {
    y = converted<To>(x);
  }
};
struct AddTo {
  static constexpr bool reads = true;
  template <class T>
  __device__ void operator()(T& y, const T& x) const {
    y += x;
  }
};

// kN elements per thread; strides count elements, so those of a pack are multiples of kN.
template <class To, class From, int kN, class Op>
__global__ void strided_kernel(To* y, const From* x, int64_t n, Walk w, Op op) {
  const int64_t i = piece();
  if (i >= n) return;
  int64_t at_y, at_x;
  locate(w, i, at_y, at_x);
  if constexpr (kN == 1) {
    op(y[at_y], x[at_x]);
  } else {
    const Pack<From, kN> in = load_pack<kN>(x + at_x);
    Pack<To, kN> out;
    if constexpr (Op::reads) out = load_pack<kN>(y + at_y);
    for (int j = 0; j < kN; ++j) op(out.v[j], in.v[j]);
    store_pack(y + at_y, out);
  }
}

// y is dense along columns, x along rows; `batch` has the other axes.
struct Transposition {
  Walk batch;
  int64_t rows = 0, columns = 0, step_y = 0, step_x = 0, tiles_down = 0, tiles_across = 0;
};

template <class To, class From, class Op>
__global__ void transposed_kernel(To* y, const From* x, Transposition p, Op op) {
  __shared__ __align__(16) unsigned char bytes[kTile * (kTile + 1) * sizeof(From)];
  From* tile = reinterpret_cast<From*>(bytes);
  const int64_t above = quotient(blockIdx.x, p.tiles_across);
  const int64_t matrix = quotient(above, p.tiles_down);
  const int64_t c0 = (blockIdx.x - above * p.tiles_across) * kTile;
  const int64_t r0 = (above - matrix * p.tiles_down) * kTile;
  int64_t at_y, at_x;
  locate(p.batch, matrix, at_y, at_x);
  for (int k = int(threadIdx.y); k < kTile; k += kTileRows) {
    const int64_t r = r0 + threadIdx.x, c = c0 + k;
    if (r < p.rows && c < p.columns) {
      tile[k * (kTile + 1) + int(threadIdx.x)] = x[at_x + r + c * p.step_x];
    }
  }
  __syncthreads();
  for (int k = int(threadIdx.y); k < kTile; k += kTileRows) {
    const int64_t r = r0 + k, c = c0 + threadIdx.x;
    if (r < p.rows && c < p.columns) {
      op(y[at_y + r * p.step_y + c], tile[int(threadIdx.x) * (kTile + 1) + k]);
    }
  }
}

// The axis along which x is dense when y is not; -1 if tiles do not help.
int other_dense_axis(const Walk& w) {
  const int last = w.axes - 1;
  if (w.y[last] != 1 || w.x[last] <= 1 || w.size[last] < kThin) return -1;
  for (int i = 0; i < last; ++i) {
    if (w.x[i] == 1 && w.size[i] >= kThin) return i;
  }
  return -1;
}

template <class To, class From, class Op>
void transpose(const char* name, To* y, const From* x, Walk w, int dense, Op op) {
  const int last = w.axes - 1;
  Transposition p;
  p.rows = w.size[dense];
  p.columns = w.size[last];
  p.step_y = w.y[dense];
  p.step_x = w.x[last];
  p.tiles_down = (p.rows + kTile - 1) / kTile;
  p.tiles_across = (p.columns + kTile - 1) / kTile;
  w.remove(last);
  w.remove(dense);
  if (w.axes == 0) w.insert(0, 1, 1, 1);
  p.batch = w;
  launch(name, transposed_kernel<To, From, Op>,
         dim3(blocks_for(w.numel() * p.tiles_down * p.tiles_across, 1)), dim3(kTile, kTileRows), 0,
         y, x, p, op);
}

// Everything that the number of elements of a pack must divide, or-ed; 0 if runs have gaps.
int64_t run_bits(const Walk& w) {
  if (!w.dense()) return 1;
  int64_t bits = w.size[w.axes - 1];
  for (int i = 0; i + 1 < w.axes; ++i) bits |= w.y[i] | w.x[i];
  return bits;
}

// Iterates over packs of n elements along a dense innermost axis.
Walk in_packs(Walk w, int64_t n) {
  const int last = w.axes - 1;
  w.size[last] /= n;
  w.y[last] = w.x[last] = n;
  return w;
}

template <class To, class From, class Op>
void walk(const char* name, To* y, const From* x, const Walk& w, Op op) {
  constexpr int kN = kWide<std::conditional_t<(sizeof(To) > sizeof(From)), To, From>>;
  const int dense = other_dense_axis(w);
  if (dense >= 0) return transpose(name, y, x, w, dense, op);
  if (kN > 1 && run_bits(w) % kN == 0 && aligned(kN * sizeof(To), y) &&
      aligned(kN * sizeof(From), x)) {
    const Walk packs = in_packs(w, kN);
    launch_each(name, packs.numel(), strided_kernel<To, From, kN, Op>, y, x, packs.numel(), packs,
                op);
  } else {
    launch_each(name, w.numel(), strided_kernel<To, From, 1, Op>, y, x, w.numel(), w, op);
  }
}

// The strides and the innermost size in units of more or fewer bytes than an element.
Walk in_units(Walk w, int64_t item, int64_t unit) {
  const int last = w.axes - 1;
  for (int i = 0; i < last; ++i) {
    w.y[i] = w.y[i] * item / unit;
    w.x[i] = w.x[i] * item / unit;
  }
  w.size[last] = w.size[last] * item / unit;
  return w;
}

// Copies bits, in the widest unit that divides all runs.
void copy_bits(const Tensor& y, const Tensor& x, const Walk& w) {
  const int64_t item = int64_t(item_size(y.dtype()));
  unsigned char* py = y.raw();
  const unsigned char* px = x.raw();
  if (w.axes == 1 && w.dense()) {
    return check_cuda(
        cudaMemcpyAsync(py, px, size_t(w.size[0] * item), cudaMemcpyDeviceToDevice, stream()),
        "copy");
  }
  const uint64_t runs = uint64_t(run_bits(w) * item) | reinterpret_cast<uintptr_t>(py) |
                        reinterpret_cast<uintptr_t>(px);
  dispatch_unit(w.dense() ? runs : uint64_t(item), [&]<class U>() {
    const Walk units = w.dense() ? in_units(w, item, int64_t(sizeof(U))) : w;
    U* to = reinterpret_cast<U*>(py);
    const U* from = reinterpret_cast<const U*>(px);
    const int dense = other_dense_axis(units);
    if (dense >= 0) return transpose("copy", to, from, units, dense, Assign{});
    launch_each("copy", units.numel(), strided_kernel<U, U, 1, Assign>, to, from, units.numel(),
                units, Assign{});
  });
}

template <class U>
__global__ void fill_kernel(U* y, int64_t n, Walk w, U value) {
  const int64_t i = piece();
  if (i >= n) return;
  int64_t at_y, at_x;
  locate(w, i, at_y, at_x);
  y[at_y] = value;
}

}  // namespace

void copy(Tensor y, Tensor x) {
  if (y.numel() == 0) return;
  const Walk w = walk_of(y, x);
  if (y.dtype() == x.dtype()) return copy_bits(y, x, w);
  dispatch_any(y.dtype(), [&]<class To>() {
    dispatch_any(x.dtype(), [&]<class From>() {
      if constexpr (!std::is_same_v<To, From>) {
        walk("copy", y.data<To>(), static_cast<const From*>(x.data<From>()), w, Assign{});
      }
    });
  });
}

void accumulate(Tensor y, Tensor x) {
  if (y.numel() == 0) return;
  dispatch_float(y.dtype(), [&]<class T>() {
    walk("accumulate", y.data<T>(), static_cast<const T*>(x.data<T>()), walk_of(y, x), AddTo{});
  });
}

void fill(Tensor y, double value) {
  if (y.numel() == 0) return;
  const int64_t item = int64_t(item_size(y.dtype()));
  alignas(16) unsigned char element[16];  // the same value repeatedly
  dispatch_any(y.dtype(), [&]<class T>() {
    const T v = converted<T>(value);
    for (size_t at = 0; at < sizeof element; at += sizeof v)
      std::memcpy(element + at, &v, sizeof v);
  });
  const Walk w = walk_of(y, y);
  const bool zero =
      std::all_of(element, element + 16, [](unsigned char byte) { return byte == 0; });
  if (zero && w.axes == 1 && w.dense()) {
    return check_cuda(cudaMemsetAsync(y.raw(), 0, size_t(w.size[0] * item), stream()), "fill");
  }
  const uint64_t runs = uint64_t(run_bits(w) * item) | reinterpret_cast<uintptr_t>(y.raw());
  dispatch_unit(w.dense() ? runs : uint64_t(item), [&]<class U>() {
    const Walk units = w.dense() ? in_units(w, item, int64_t(sizeof(U))) : w;
    U v;
    std::memcpy(&v, element, sizeof v);
    launch_each("fill", units.numel(), fill_kernel<U>, reinterpret_cast<U*>(y.raw()), units.numel(),
                units, v);
  });
}

}  // namespace brine::cuda
