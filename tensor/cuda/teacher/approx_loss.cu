// L_approx in the K columns (docs/method.md section 4.1): a warp for every row, sums over rows by
// blocks.
#include "tensor/cuda/core/columns.cuh"
#include "tensor/cuda/dense/loss_sums.cuh"
#include "tensor/kernels/teacher.h"

namespace brine::cuda {
namespace {

constexpr int kRows = kThreads / kWarp;  // of a block

// The row of the calling warp; w = 0 at padding and after the last row.
struct WarpRow {
  int64_t r, b, w;

  __device__ WarpRow(const RowWidths& widths, int64_t R, int64_t H)
      : r(piece() / kWarp), b(0), w(0) {
    if (r >= R) return;
    b = r / (H * widths.rows);
    w = widths(b, r % widths.rows);
  }
  // f(column, keys) for the columns of this lane.
  template <class F>
  __device__ void each(int64_t K, F&& f) const {
    for (int64_t c = threadIdx.x % kWarp; c < K; c += kWarp) {
      f(c, column_begin(c + 1, w, K) - column_begin(c, w, K));
    }
  }
};

// exp(s[c] - max) inverse is the probability of each key of column c.
template <class T>
struct Widened {
  const T* s;
  T max, inverse, lse;

  __device__ Widened(const T* s, const WarpRow& row, int64_t K) : s(s) {
    T top = -INFINITY, sum = 0;
    row.each(K, [&](int64_t c, int64_t n) { top = n > 0 && s[c] > top ? s[c] : top; });
    max = warp_max(top);
    row.each(K, [&](int64_t c, int64_t n) {
      if (n > 0) sum += T(n) * math::exp(s[c] - max);
    });
    sum = warp_sum(sum);
    inverse = 1 / sum;
    lse = max + math::log(sum);
  }
  __device__ T operator[](int64_t c) const { return math::exp(s[c] - max) * inverse; }
};

// parts [blocks, 2] = the sums over a block's rows.
template <class T>
__global__ void approx_loss_kernel(double* parts, const T* scores, const T* tau, const T* logs,
                                   const T* squares, RowWidths widths, int64_t R, int64_t H,
                                   int64_t K) {
  const WarpRow row(widths, R, H);
  double kl = 0, square = 0;
  if (row.w > 0) {
    const Widened<T> a(scores + row.r * K, row, K);
    const T* t = tau + row.r * K;
    double cross = 0, distance = 0;
    row.each(K, [&](int64_t c, int64_t n) {
      if (n == 0) return;
      const double per_key = double(a[c]);
      cross += double(t[c]) * (double(a.lse) - double(a.s[c]));
      distance += per_key * (double(n) * per_key - 2 * double(t[c]));
    });
    cross = warp_sum(cross);
    distance = warp_sum(distance);
    if (threadIdx.x % kWarp == 0) {
      kl = double(logs[row.r]) + cross;
      square = (distance + double(squares[row.r])) / double(widths.length(row.b));
    }
  }
  kl = block_sum(kl);
  square = block_sum(square);
  if (threadIdx.x > 0) return;
  parts[2 * int64_t(blockIdx.x)] = kl;
  parts[2 * int64_t(blockIdx.x) + 1] = square;
}

template <class T>
__global__ void approx_loss_backward_kernel(T* dscores, const double* weights, const T* scores,
                                            const T* tau, RowWidths widths, int64_t R, int64_t H,
                                            int64_t K) {
  const WarpRow row(widths, R, H);
  if (row.r >= R) return;
  T* dx = dscores + row.r * K;
  if (row.w == 0) {
    for (int64_t c = threadIdx.x % kWarp; c < K; c += kWarp) dx[c] = 0;
    return;
  }
  const Widened<T> a(scores + row.r * K, row, K);
  const T* t = tau + row.r * K;
  T mass = 0, mean = 0;
  row.each(K, [&](int64_t c, int64_t n) {
    mass += t[c];
    if (n > 0) mean += a[c] * (T(n) * a[c] - t[c]);
  });
  mass = warp_sum(mass);
  mean = warp_sum(mean);
  const T kl = T(weights[0]), square = T(2 * weights[1] / double(widths.length(row.b)));
  row.each(K, [&](int64_t c, int64_t n) {
    if (n == 0) {
      dx[c] = 0;
      return;
    }
    const T per_key = a[c], p = T(n) * per_key;
    dx[c] = kl * (mass * p - t[c]) + square * (per_key * (p - t[c]) - p * mean);
  });
}

}  // namespace

void approx_loss(Tensor y, Tensor scores, TeacherSummary summary, Visibility visible) {
  const int64_t B = scores.dim(0), H = scores.dim(1), rows = scores.dim(2), K = scores.dim(3);
  const int64_t R = B * H * rows, blocks = (R + kRows - 1) / kRows;
  const DeviceWidths widths(visible, rows, scores.device());
  Tensor parts = Tensor::empty({blocks, 2}, Dtype::f64, scores.device());
  dispatch_float(scores.dtype(), [&]<class T>() {
    launch_each("approx_loss", R * kWarp, approx_loss_kernel<T>, parts.data<double>(),
                scores.data<T>(), summary.tau.data<T>(), summary.t_log_t.data<T>(),
                summary.t_square.data<T>(), widths.get(), R, H, K);
    loss_means<T>("approx_loss", y, parts, widths.get(), B, H);
  });
}

void approx_loss_backward(Tensor dscores, Tensor dy, Tensor scores, TeacherSummary summary,
                          Visibility visible) {
  const int64_t B = scores.dim(0), H = scores.dim(1), rows = scores.dim(2), K = scores.dim(3);
  const int64_t R = B * H * rows;
  if (R == 0) return;
  const DeviceWidths widths(visible, rows, scores.device());
  Tensor weights = Tensor::empty({2}, Dtype::f64, scores.device());
  dispatch_float(scores.dtype(), [&]<class T>() {
    launch("approx_loss_backward", loss_weights_kernel<T>, dim3(1), dim3(kThreads), 0,
           weights.data<double>(), dy.data<T>(), widths.get(), B, H);
    launch_each("approx_loss_backward", R * kWarp, approx_loss_backward_kernel<T>,
                dscores.data<T>(), weights.data<double>(), scores.data<T>(), summary.tau.data<T>(),
                widths.get(), R, H, K);
  });
}

}  // namespace brine::cuda
