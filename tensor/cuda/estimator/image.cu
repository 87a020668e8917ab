// The softmax over columns, and an identity by rows: a warp for every row.
#include <limits>

#include "tensor/cuda/core/packs.cuh"
#include "tensor/kernels/estimator.h"

namespace brine::cuda {
namespace {

template <class T>
__global__ void column_softmax_kernel(T* y, const T* scores, int64_t rows, int64_t H,
                                      int64_t tokens, int64_t K, RowWidths widths) {
  const int64_t r = piece() / kWarp;
  if (r >= rows) return;
  const int64_t lane = int64_t(threadIdx.x) % kWarp, w = widths(r / (H * tokens), r % tokens);
  const T* x = scores + r * K;
  T* out = y + r * K;
  if (w == 0) {
    for (int64_t c = lane; c < K; c += kWarp) out[c] = 0;
    return;
  }
  // Columns without keys get -inf: their exp is 0.
  const T hidden = -std::numeric_limits<T>::infinity();
  auto score = [=](int64_t c) {
    const bool owns = w >= K || math::column_begin(c + 1, w, K) > math::column_begin(c, w, K);
    return owns ? x[c] : hidden;
  };
  T max_score = hidden, sum = 0;
  for (int64_t c = lane; c < K; c += kWarp) max_score = Max{}(score(c), max_score);
  max_score = warp_max(max_score);
  for (int64_t c = lane; c < K; c += kWarp) sum += math::exp(score(c) - max_score);
  const T share = 1 / warp_sum(sum);
  for (int64_t c = lane; c < K; c += kWarp) out[c] = math::exp(score(c) - max_score) * share;
}

// A warp for every row.
template <class T>
__global__ void resampled_identity_kernel(T* y, RowWidths widths, bool nearest, int64_t rows,
                                          int64_t d) {
  const int64_t r = piece() / kWarp;
  if (r >= rows) return;
  const int64_t b = quotient(r, widths.rows), p = r - b * widths.rows, L = widths.valid(b);
  for (int64_t c = threadIdx.x % kWarp; c < d; c += kWarp) {
    y[r * d + c] = p < L ? T(math::resampled_identity(p, c, L, d, nearest)) : T(0);
  }
}

}  // namespace

void column_softmax(Tensor y, Tensor scores, Visibility visible) {
  if (y.numel() == 0) return;
  const DeviceWidths widths(visible, y.dim(2), y.device());
  dispatch_float(y.dtype(), [&]<class T>() {
    launch_each("column_softmax", y.rows() * kWarp, column_softmax_kernel<T>, y.data<T>(),
                scores.data<T>(), y.rows(), y.dim(1), y.dim(2), y.dim(3), widths.get());
  });
}

void resampled_identity(Tensor y, Tensor lengths, bool nearest) {
  const int64_t rows = y.dim(0) * y.dim(1), d = y.dim(2);
  const DeviceWidths widths({.causal = false, .lengths = lengths}, y.dim(1), y.device());
  dispatch_float(y.dtype(), [&]<class T>() {
    launch_each("resampled_identity", rows * kWarp, resampled_identity_kernel<T>, y.data<T>(),
                widths.get(), nearest, rows, d);
  });
}

}  // namespace brine::cuda
