// copy, accumulate and fill of strided tensors of any type: axes are merged first, so that most
// calls become a few long runs. Only the run along the innermost axis depends on the types.
#include <cstring>
#include <type_traits>

#include "tensor/base/parallel.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/kernels/converted.h"
#include "tensor/kernels/dense.h"

namespace brine::BRINE_CPU {
namespace {

using Byte = unsigned char;

constexpr int64_t kTile = 16;  // side of a tile of a transposition

// n elements; steps in elements.
using Run = void (*)(Byte* y, const Byte* x, int64_t n, int64_t step_y, int64_t step_x);

// Sizes with the strides of y and of x, without axes of size 1 and with neighbours merged if both
// are gapless there. Never empty; the last axis is the innermost.
struct Walk {
  std::vector<int64_t> size, y, x;
};

Walk merged(const Shape& shape, const Shape& y, const Shape& x) {
  Walk w;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] == 1) continue;
    if (!w.size.empty() && w.y.back() == shape[i] * y[i] && w.x.back() == shape[i] * x[i]) {
      w.size.back() *= shape[i];
      w.y.back() = y[i];
      w.x.back() = x[i];
    } else {
      w.size.push_back(shape[i]);
      w.y.push_back(y[i]);
      w.x.push_back(x[i]);
    }
  }
  if (w.size.empty()) w = {{1}, {1}, {1}};
  return w;
}

// Calls f(y offset, x offset, index in the last of them) for every index of the first `axes` axes,
// in parallel pieces.
template <class F>
void each_offset(const Walk& w, size_t axes, int64_t inner, F f) {
  int64_t n = 1;
  for (size_t i = 0; i < axes; ++i) n *= w.size[i];
  parallel_for(n, std::max<int64_t>(1, kGrain / inner), [&](int64_t begin, int64_t end) {
    int64_t index[Shape::kMaxRank + 1] = {}, at_y = 0, at_x = 0, rest = begin;
    for (size_t i = axes; i-- > 0; rest /= w.size[i]) {
      index[i] = rest % w.size[i];
      at_y += index[i] * w.y[i];
      at_x += index[i] * w.x[i];
    }
    for (int64_t r = begin; r < end; ++r) {
      f(at_y, at_x, axes ? index[axes - 1] : 0);
      for (size_t i = axes; i-- > 0;) {
        at_y += w.y[i];
        at_x += w.x[i];
        if (++index[i] < w.size[i]) break;
        at_y -= w.y[i] * w.size[i];
        at_x -= w.x[i] * w.size[i];
        index[i] = 0;
      }
    }
  });
}

// When y is dense along the innermost axis and x along another, moves that one next to it: a
// transposition, for which tiles use whole cache lines on both sides.
bool make_transposition(Walk& w) {
  const size_t last = w.size.size() - 1;
  if (w.y[last] != 1 || w.x[last] <= 1) return false;
  for (size_t i = 0; i < last; ++i) {
    if (w.x[i] != 1) continue;
    for (; i + 1 < last; ++i) {
      std::swap(w.size[i], w.size[i + 1]);
      std::swap(w.y[i], w.y[i + 1]);
      std::swap(w.x[i], w.x[i + 1]);
    }
    return true;
  }
  return false;
}

void walk_tiles(const Walk& w, Byte* y, const Byte* x, int64_t size_y, int64_t size_x, Run run) {
  const size_t last = w.size.size() - 1;
  const int64_t rows = w.size[last - 1], columns = w.size[last];
  const int64_t step_y = w.y[last - 1], step_x = w.x[last];
  Walk bands = w;  // kTile rows each
  bands.size[last - 1] = (rows + kTile - 1) / kTile;
  bands.y[last - 1] *= kTile;
  bands.x[last - 1] *= kTile;
  each_offset(bands, last, kTile * columns, [&](int64_t at_y, int64_t at_x, int64_t band) {
    const int64_t height = std::min(kTile, rows - band * kTile);
    for (int64_t c = 0; c < columns; c += kTile) {
      const int64_t width = std::min(columns - c, kTile);
      for (int64_t r = 0; r < height; ++r) {
        run(y + (at_y + r * step_y + c) * size_y, x + (at_x + r + c * step_x) * size_x, width, 1,
            step_x);
      }
    }
  });
}

// Runs `run` over all elements of y and of the memory px, whose elements have size_x bytes and
// whose strides are those of a tensor of y's shape.
void walk(const Tensor& y, const Byte* px, int64_t size_x, const Shape& strides_x, Run run) {
  if (y.numel() == 0) return;
  Walk w = merged(y.shape(), y.strides(), strides_x);
  const int64_t size_y = int64_t(item_size(y.dtype()));
  Byte* py = y.raw();
  if (make_transposition(w)) return walk_tiles(w, py, px, size_y, size_x, run);
  const size_t last = w.size.size() - 1;
  const int64_t step_y = w.y[last], step_x = w.x[last];
  if (last == 0) {
    return parallel_for(w.size[0], kGrain, [&](int64_t begin, int64_t end) {
      run(py + begin * step_y * size_y, px + begin * step_x * size_x, end - begin, step_y, step_x);
    });
  }
  each_offset(w, last, w.size[last], [&](int64_t at_y, int64_t at_x, int64_t) {
    run(py + at_y * size_y, px + at_x * size_x, w.size[last], step_y, step_x);
  });
}

void walk(const Tensor& y, const Tensor& x, Run run) {
  walk(y, x.raw(), int64_t(item_size(x.dtype())), x.strides(), run);
}

// Copies bits, elements of the size of T.
template <class T>
void run_bits(Byte* to, const Byte* from, int64_t n, int64_t step_y, int64_t step_x) {
  if (step_y == 1 && step_x == 1) return void(std::memcpy(to, from, size_t(n) * sizeof(T)));
  T* y = reinterpret_cast<T*>(to);
  const T* x = reinterpret_cast<const T*>(from);
  if (step_y == 1 && step_x == 0) return void(std::fill(y, y + n, *x));
  for (int64_t i = 0; i < n; ++i) y[i * step_y] = x[i * step_x];
}

template <class To, class From>
void run_converted(Byte* to, const Byte* from, int64_t n, int64_t step_y, int64_t step_x) {
  To* y = reinterpret_cast<To*>(to);
  const From* x = reinterpret_cast<const From*>(from);
  if constexpr (!std::is_integral_v<To> && !std::is_integral_v<From>) {
    if (step_y == 1 && step_x == 1) {
      for (int64_t i = 0; i < n; ++i) y[i] = converted<To>(x[i]);
      return;
    }
  }
  for (int64_t i = 0; i < n; ++i) y[i * step_y] = converted<To>(x[i * step_x]);
}

template <class T>
void run_added(Byte* to, const Byte* from, int64_t n, int64_t step_y, int64_t step_x) {
  T* y = reinterpret_cast<T*>(to);
  const T* x = reinterpret_cast<const T*>(from);
  if (step_y == 1 && step_x == 1) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] += x[i];
    return;
  }
  for (int64_t i = 0; i < n; ++i) y[i * step_y] += x[i * step_x];
}

Run bits_of_size(size_t size) {
  switch (size) {
    case 1:
      return run_bits<uint8_t>;
    case 2:
      return run_bits<uint16_t>;
    case 4:
      return run_bits<uint32_t>;
    default:
      return run_bits<uint64_t>;
  }
}

}  // namespace

void copy(Tensor y, Tensor x) {
  if (y.dtype() == x.dtype()) return walk(y, x, bits_of_size(item_size(y.dtype())));
  dispatch_any(y.dtype(), [&]<class To>() {
    dispatch_any(x.dtype(), [&]<class From>() { walk(y, x, run_converted<To, From>); });
  });
}

void accumulate(Tensor y, Tensor x) {
  dispatch_float(y.dtype(), [&]<class T>() { walk(y, x, run_added<T>); });
}

// A copy of one element, whose strides are all 0.
void fill(Tensor y, double value) {
  alignas(8) Byte element[8];
  dispatch_any(y.dtype(), [&]<class T>() {
    const T v = converted<T>(value);
    std::memcpy(element, &v, sizeof v);
  });
  walk(y, element, 0, Shape(std::vector<int64_t>(size_t(y.rank()), 0)),
       bits_of_size(item_size(y.dtype())));
}

}  // namespace brine::BRINE_CPU
