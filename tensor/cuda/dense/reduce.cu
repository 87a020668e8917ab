// Sums in f64, in pieces that depend only on the sizes: a second launch sums the parts of the
// pieces in a fixed order.
#include <cmath>
#include <limits>
#include <type_traits>

#include "tensor/cuda/core/band_sums.cuh"
#include "tensor/kernels/dense.h"

namespace brine::cuda {
namespace {

constexpr int64_t kPiece = 8192;     // elements of a block of sum_kernel, at least
constexpr int64_t kPieces = 1024;    // blocks of it, at most
constexpr int64_t kRowPiece = 2048;  // elements of a warp of row_sums_kernel

struct Itself {
  template <class T>
  __device__ double operator()(T x) const {
    return double(x);
  }
};
struct Square {
  template <class T>
  __device__ double operator()(T x) const {
    return double(x) * double(x);
  }
};
// 1 for an exponent of all ones: NaN or infinity.
struct Nonfinite {
  template <class T>
  __device__ double operator()(T x) const {
    if constexpr (sizeof(T) == 2) {
      const uint16_t mask = std::is_same_v<T, bf16> ? 0x7f80 : 0x7c00;
      return (x.bits & mask) == mask;
    } else {
      return !(std::fabs(x) <= std::numeric_limits<T>::max());
    }
  }
};

// out[block] = the sum of f(x) over a piece of `size` elements.
template <class Out, class In, class F>
__global__ void sum_kernel(Out* out, const In* x, int64_t n, int64_t size, F f) {
  const int64_t begin = blockIdx.x * size, end = begin + size < n ? begin + size : n;
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) sum += f(x[i]);
  sum = block_sum(sum);
  if (threadIdx.x == 0) out[blockIdx.x] = Out(sum);
}

// y[0] = the sum of f(x) over n elements.
template <class Out, class In, class F>
void sum_into(const char* name, Out* y, const In* x, int64_t n, Device device, F f) {
  const int64_t size = std::max(kPiece, (n + kPieces - 1) / kPieces);
  const unsigned pieces = blocks_for(n, size);
  if (pieces == 1) {
    return launch(name, sum_kernel<Out, In, F>, dim3(1), dim3(kThreads), 0, y, x, n, size, f);
  }
  Tensor parts = Tensor::empty({int64_t(pieces)}, Dtype::f64, device);
  double* p = parts.data<double>();
  launch(name, sum_kernel<double, In, F>, dim3(pieces), dim3(kThreads), 0, p, x, n, size, f);
  launch(name, sum_kernel<Out, double, Itself>, dim3(1), dim3(kThreads), 0, y, p, int64_t(pieces),
         int64_t(pieces), Itself{});
}

}  // namespace

void sum_all(Tensor y, Tensor x) {
  dispatch_float(x.dtype(), [&]<class T>() {
    sum_into("sum_all", y.data<T>(), x.data<T>(), x.numel(), x.device(), Itself{});
  });
}

void square_sum(Tensor y, Tensor x) {
  dispatch_float(x.dtype(), [&]<class T>() {
    sum_into("square_sum", y.data<double>(), x.data<T>(), x.numel(), x.device(), Square{});
  });
}

void count_nonfinite(Tensor y, Tensor x) {
  dispatch_any(x.dtype(), [&]<class T>() {
    if constexpr (std::is_integral_v<T>) {
      check_cuda(cudaMemsetAsync(y.raw(), 0, sizeof(int64_t), stream()), "count_nonfinite");
    } else {
      sum_into("count_nonfinite", y.data<int64_t>(), x.data<T>(), x.numel(), x.device(),
               Nonfinite{});
    }
  });
}

namespace {

template <class T>
struct RowTerms {
  const T* x;
  int64_t C;
  __device__ void operator()(double (&sum)[1], int64_t, int64_t r, int64_t c) const {
    sum[0] += double(x[r * C + c]);
  }
};
template <class T>
struct AddToRow {
  T* y;
  __device__ void operator()(int64_t, int64_t, int64_t c, const double (&sum)[1]) const {
    y[c] = T(double(y[c]) + sum[0]);
  }
};

}  // namespace

void sum_rows(Tensor y, Tensor x) {
  const int64_t C = y.numel(), R = C ? x.numel() / C : 0;
  if (R == 0) return;
  dispatch_float(x.dtype(), [&]<class T>() {
    sum_bands<1>("sum_rows", 1, R, C, RowTerms<T>{x.data<T>(), C}, AddToRow<T>{y.data<T>()},
                 x.device());
  });
}

namespace {

// The terms of a row's sum: of(element), the factor of the sum, and whether the row counts.
template <class T>
struct Products {
  const T *a, *b;
  __device__ double of(int64_t i) const { return double(a[i]) * double(b[i]); }
  __device__ double factor(int64_t) const { return 1; }
};
template <class T>
struct SquaredGaps {
  const T *a, *b, *weight;
  __device__ double of(int64_t i) const {
    const double gap = double(a[i]) - double(b[i]);
    return gap * gap;
  }
  __device__ double factor(int64_t r) const { return double(weight[r]); }
};
struct Parts {
  const double* x;
  __device__ double of(int64_t i) const { return x[i]; }
  __device__ double factor(int64_t) const { return 1; }
};

// y [R, pieces] = sums over pieces of rows of C elements, a warp each. A row with the factor 0 is
// not read.
template <class Out, class Terms>
__global__ void row_sums_kernel(Out* y, int64_t R, int64_t C, int64_t pieces, Terms terms) {
  const int64_t i = piece() / kWarp;
  if (i >= R * pieces) return;
  const int64_t r = quotient(i, pieces), begin = (i - r * pieces) * kRowPiece;
  const int64_t end = pieces > 1 && begin + kRowPiece < C ? begin + kRowPiece : C;
  const double factor = terms.factor(r);
  double sum = 0;
  if (factor != 0) {
    for (int64_t c = begin + threadIdx.x % kWarp; c < end; c += kWarp) sum += terms.of(r * C + c);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) y[i] = Out(factor != 0 ? sum * factor : 0);
}

template <class Out, class Terms>
void row_sums(const char* name, Out* y, int64_t R, int64_t C, int64_t pieces, Terms terms) {
  launch_each(name, R * pieces * kWarp, row_sums_kernel<Out, Terms>, y, R, C, pieces, terms);
}

int64_t row_pieces(int64_t C) { return std::max<int64_t>(1, (C + kRowPiece - 1) / kRowPiece); }

}  // namespace

void dot_rows(Tensor y, Tensor a, Tensor b) {
  const int64_t R = y.numel(), C = R ? a.numel() / R : 0, pieces = row_pieces(C);
  dispatch_float(y.dtype(), [&]<class T>() {
    const Products<T> products{a.data<T>(), b.data<T>()};
    if (pieces == 1) return row_sums("dot_rows", y.data<T>(), R, C, pieces, products);
    Tensor parts = Tensor::empty({R, pieces}, Dtype::f64, a.device());
    row_sums("dot_rows", parts.data<double>(), R, C, pieces, products);
    row_sums("dot_rows", y.data<T>(), R, pieces, 1, Parts{parts.data<double>()});
  });
}

void squared_distance(Tensor y, Tensor a, Tensor b, Tensor weight) {
  const int64_t R = weight.numel(), C = R ? a.numel() / R : 0, pieces = row_pieces(C);
  Tensor parts = Tensor::empty({R, pieces}, Dtype::f64, a.device());
  dispatch_float(a.dtype(), [&]<class T>() {
    row_sums("squared_distance", parts.data<double>(), R, C, pieces,
             SquaredGaps<T>{a.data<T>(), b.data<T>(), weight.data<T>()});
    sum_into("squared_distance", y.data<T>(), parts.data<double>(), R * pieces, a.device(),
             Itself{});
  });
}

namespace {

template <class T>
__global__ void squared_distance_backward_kernel(T* da, T* db, const T* dy, const T* a, const T* b,
                                                 const T* weight, int64_t n, int64_t C) {
  const int64_t i = piece();
  if (i >= n) return;
  const T factor = weight[quotient(i, C)] * (2 * dy[0]);
  const T g = factor == 0 ? T(0) : factor * (a[i] - b[i]);
  if (da) da[i] = g;
  if (db) db[i] = factor == 0 ? T(0) : -g;
}

}  // namespace

void squared_distance_backward(Tensor da, Tensor db, Tensor dy, Tensor a, Tensor b, Tensor weight) {
  const int64_t R = weight.numel(), C = R ? a.numel() / R : 0;
  dispatch_float(a.dtype(), [&]<class T>() {
    launch_each("squared_distance_backward", R * C, squared_distance_backward_kernel<T>,
                da.defined() ? da.data<T>() : nullptr, db.defined() ? db.data<T>() : nullptr,
                dy.data<T>(), a.data<T>(), b.data<T>(), weight.data<T>(), R * C, C);
  });
}

}  // namespace brine::cuda
