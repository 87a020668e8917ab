// Softmax over the visible keys of each row, or over those that a mask keeps. A row is read again
// instead of being kept in registers: it stays in the cache.
#include <limits>

#include "tensor/cuda/core/rows.cuh"
#include "tensor/kernels/dense.h"

namespace brine::cuda {
namespace {

// y [B, H, T, S]; `whole` = neither lengths nor a causal mask: rows see all S keys, not T.
template <class Row, class T>
__global__ void softmax_kernel(T* y, const T* x, int64_t rows, int64_t H, int64_t S, T scale,
                               RowWidths widths, bool whole) {
  const int64_t r = Row::row();
  if (r >= rows) return;
  const int64_t width = whole ? S : widths(r / (widths.rows * H), r % widths.rows);
  const int64_t visible = width < S ? width : S;
  x += r * S;
  y += r * S;
  T top = std::numeric_limits<T>::lowest();
  for (int64_t i = Row::lane(); i < visible; i += Row::size()) {
    const T v = scale * x[i];
    top = v > top ? v : top;  // NaN is ignored here and appears in the sum
  }
  top = Row::max(top);
  T sum = 0;
  for (int64_t i = Row::lane(); i < visible; i += Row::size()) {
    sum += math::exp_nonpositive(scale * x[i] - top);
  }
  sum = Row::sum(sum);
  const T share = 1 / sum;
  for (int64_t i = Row::lane(); i < S; i += Row::size()) {
    y[i] = i < visible ? math::exp_nonpositive(scale * x[i] - top) * share : T(0);
  }
}

// dx = scale y (dy - sum(dy y))
template <class Row, class T>
__global__ void softmax_backward_kernel(T* dx, const T* dy, const T* y, int64_t rows, int64_t S,
                                        T scale) {
  const int64_t r = Row::row();
  if (r >= rows) return;
  dx += r * S;
  dy += r * S;
  y += r * S;
  T dot = 0;
  for (int64_t i = Row::lane(); i < S; i += Row::size()) dot += dy[i] * y[i];
  dot = Row::sum(dot);
  for (int64_t i = Row::lane(); i < S; i += Row::size()) dx[i] = scale * y[i] * (dy[i] - dot);
}

template <class Row, class T>
__global__ void masked_softmax_kernel(T* y, const T* x, const uint8_t* mask, int64_t rows,
                                      int64_t S, T scale) {
  const int64_t r = Row::row();
  if (r >= rows) return;
  x += r * S;
  y += r * S;
  mask += r * S;
  constexpr T kNone = -std::numeric_limits<T>::infinity();
  T max_score = kNone;
  for (int64_t i = Row::lane(); i < S; i += Row::size()) {
    if (mask[i] && x[i] * scale > max_score) max_score = x[i] * scale;
  }
  max_score = Row::max(max_score);
  // In a row without an entry all values are 0, whatever the origin.
  const T origin = max_score == kNone ? T(0) : max_score;
  T sum = 0;
  for (int64_t i = Row::lane(); i < S; i += Row::size()) {
    if (mask[i]) sum += math::exp(x[i] * scale - origin);
  }
  sum = Row::sum(sum);
  const T share = sum != 0 ? 1 / sum : T(0);
  for (int64_t i = Row::lane(); i < S; i += Row::size()) {
    y[i] = (mask[i] ? math::exp(x[i] * scale - origin) : T(0)) * share;
  }
}

}  // namespace

void softmax(Tensor y, Tensor x, double scale, Visibility visible) {
  const int64_t rows = x.rows(), S = x.dim(-1);
  const DeviceWidths widths(visible, x.dim(-2), x.device());
  dispatch_float(y.dtype(), [&]<class T>() {
    launch_rows("softmax", rows, S, softmax_kernel<RowWarp, T>, softmax_kernel<RowBlock, T>,
                y.data<T>(), x.data<T>(), rows, x.dim(-3), S, T(scale), widths.get(),
                !visible.causal && !visible.lengths.defined());
  });
}

void softmax_backward(Tensor dx, Tensor dy, Tensor y, double scale) {
  const int64_t rows = y.rows(), S = y.dim(-1);
  dispatch_float(y.dtype(), [&]<class T>() {
    launch_rows("softmax_backward", rows, S, softmax_backward_kernel<RowWarp, T>,
                softmax_backward_kernel<RowBlock, T>, dx.data<T>(), dy.data<T>(), y.data<T>(), rows,
                S, T(scale));
  });
}

void masked_softmax(Tensor y, Tensor x, Tensor mask, double scale) {
  const int64_t rows = x.rows(), S = x.dim(-1);
  dispatch_float(x.dtype(), [&]<class T>() {
    launch_rows("masked_softmax", rows, S, masked_softmax_kernel<RowWarp, T>,
                masked_softmax_kernel<RowBlock, T>, y.data<T>(), x.data<T>(), mask.data<uint8_t>(),
                rows, S, T(scale));
  });
}

}  // namespace brine::cuda
