// Random features of the Performer and learned ones, from projected inputs: a warp for every row.
#include <cmath>
#include <limits>

#include "tensor/cuda/core/common.cuh"
#include "tensor/kernels/estimator.h"

namespace brine::cuda {
namespace {

constexpr int64_t kBlockRows = kThreads / kWarp;
constexpr int64_t kBand = 128;   // rows whose largest projection one block finds, at least
constexpr int64_t kBands = 256;  // per sequence and head, at most

// Rows of phi [B, H, T, m], and which of them are padding; columns from `features` on are 0.
struct Rows {
  int64_t count, heads, tokens, m, features;
  RowWidths widths;

  // The row of the calling warp; none at or beyond `count`.
  __device__ int64_t warp_row() const {
    return int64_t(blockIdx.x) * kBlockRows + int64_t(threadIdx.x) / kWarp;
  }
  __device__ bool visible(int64_t r) const {
    return r % tokens < widths.length(r / (heads * tokens));
  }
};

Rows rows_of(const Tensor& phi, const DeviceWidths& widths, int64_t features) {
  return {phi.dim(0) * phi.dim(1) * phi.dim(2),
          phi.dim(1),
          phi.dim(2),
          phi.dim(3),
          features,
          widths.get()};
}

__device__ int64_t lane() { return int64_t(threadIdx.x) % kWarp; }

template <class T>
__global__ void relu_kernel(T* phi, T eps, Rows rows) {
  const int64_t r = rows.warp_row();
  if (r >= rows.count) return;
  const bool visible = rows.visible(r);
  T* row = phi + r * rows.m;
  for (int64_t i = lane(); i < rows.m; i += kWarp) {
    row[i] = visible && i < rows.features ? (row[i] > 0 ? row[i] + eps : eps) : T(0);
  }
}

template <class T>
__global__ void relu_backward_kernel(T* dx, const T* dphi, const T* phi, T eps, Rows rows) {
  const int64_t r = rows.warp_row();
  if (r >= rows.count) return;
  const bool visible = rows.visible(r);
  const int64_t end = (r + 1) * rows.m;
  for (int64_t i = r * rows.m + lane(); i < end; i += kWarp) {
    dx[i] = visible && phi[i] > eps ? dphi[i] : T(0);
  }
}

template <class T>
__device__ T lowest() {
  return -std::numeric_limits<T>::infinity();
}

// maxima [B H, bands] = the largest projection among the valid rows of a band.
template <class T>
__global__ void band_maxima_kernel(T* maxima, const T* phi, Rows rows, int64_t bands,
                                   int64_t band_rows) {
  const int64_t n = blockIdx.x / bands, first = blockIdx.x % bands * band_rows;
  const int64_t valid = rows.widths.valid(n / rows.heads);
  const int64_t last = first + band_rows < valid ? first + band_rows : valid;
  const T* head_phi = phi + n * rows.tokens * rows.m;
  T largest = lowest<T>();
  for (int64_t i = first * rows.m + threadIdx.x; i < last * rows.m; i += blockDim.x) {
    if (rows.features < rows.m && i % rows.m >= rows.features) continue;
    largest = head_phi[i] > largest ? head_phi[i] : largest;
  }
  largest = block_reduce(largest, lowest<T>(), Max{});
  if (threadIdx.x == 0) maxima[blockIdx.x] = largest;
}

// With maxima [B H, bands] the largest of these is subtracted, else that of the row.
template <class T>
__global__ void softmax_kernel(T* phi, const T* x, const T* maxima, int64_t bands, T norm, T half,
                               T eps, int64_t d, Rows rows) {
  const int64_t r = rows.warp_row();
  if (r >= rows.count) return;
  T* row = phi + r * rows.m;
  if (!rows.visible(r)) {
    for (int64_t i = lane(); i < rows.m; i += kWarp) row[i] = 0;
    return;
  }
  T square = 0, largest = lowest<T>();
  for (int64_t i = r * d + lane(); i < (r + 1) * d; i += kWarp) square += x[i] * x[i];
  const T* from = maxima ? maxima + r / rows.tokens * bands : row;
  const int64_t n = maxima ? bands : rows.features;
  for (int64_t i = lane(); i < n; i += kWarp) largest = from[i] > largest ? from[i] : largest;
  const T shift = half * warp_sum(square) + warp_max(largest);
  for (int64_t i = lane(); i < rows.m; i += kWarp) {
    row[i] = i < rows.features ? norm * (math::exp(row[i] - shift) + eps) : T(0);
  }
}

// The gradient of the projections is dphi times the exponential; their sum is the gradient through
// |x|^2.
template <class T>
__global__ void softmax_backward_kernel(T* dprojected, T* dx, const T* dphi, const T* phi,
                                        const T* x, T floor, T scale, int64_t d, Rows rows) {
  const int64_t r = rows.warp_row();
  if (r >= rows.count) return;
  const bool visible = rows.visible(r);
  T sum = 0;
  const int64_t end = r * rows.m + rows.features;
  for (int64_t i = r * rows.m + lane(); i < (r + 1) * rows.m; i += kWarp) {
    const T g = visible && i < end ? dphi[i] * (phi[i] - floor) : T(0);
    dprojected[i] = g;
    sum += g;
  }
  sum = warp_sum(sum);
  for (int64_t i = r * d + lane(); i < (r + 1) * d; i += kWarp) {
    dx[i] = visible ? -sum * scale * x[i] : T(0);
  }
}

template <class T>
__global__ void exp_kernel(T* phi, const T* bias, Rows rows) {
  const int64_t r = rows.warp_row();
  if (r >= rows.count) return;
  const bool visible = rows.visible(r);
  const T* add = bias + r / rows.tokens % rows.heads * rows.m;
  T* row = phi + r * rows.m;
  for (int64_t i = lane(); i < rows.m; i += kWarp) {
    const T x = row[i] + add[i], above = x < T(kLowLogFeature) ? T(kLowLogFeature) : x;
    row[i] = visible ? math::exp(above > T(kHighLogFeature) ? T(kHighLogFeature) : above) : T(0);
  }
}

template <class T>
__global__ void exp_backward_kernel(T* dx, const T* dphi, const T* phi, int64_t n) {
  if (piece() >= n) return;
  const T low = math::exp(T(kLowLogFeature)), high = math::exp(T(kHighLogFeature));
  const T y = phi[piece()];
  dx[piece()] = y > low && y < high ? dphi[piece()] * y : T(0);
}

// A warp for each row.
template <class... P, class... A>
void launch_rows(const char* name, const Rows& rows, void (*kernel)(P...), A... args) {
  if (rows.count == 0) return;
  launch(name, kernel, dim3(blocks_for(rows.count, kBlockRows)), dim3(kThreads), 0, args...);
}

}  // namespace

void relu_features(Tensor phi, double eps, Tensor lengths, int64_t features) {
  const DeviceWidths widths({.causal = false, .lengths = lengths}, phi.dim(2), phi.device());
  const Rows rows = rows_of(phi, widths, features);
  dispatch_float(phi.dtype(), [&]<class T>() {
    launch_rows("relu_features", rows, relu_kernel<T>, phi.data<T>(), T(eps), rows);
  });
}

void relu_features_backward(Tensor dx, Tensor dphi, Tensor phi, double eps, Tensor lengths) {
  const DeviceWidths widths({.causal = false, .lengths = lengths}, phi.dim(2), phi.device());
  const Rows rows = rows_of(phi, widths, phi.dim(3));
  dispatch_float(phi.dtype(), [&]<class T>() {
    launch_rows("relu_features_backward", rows, relu_backward_kernel<T>, dx.data<T>(),
                dphi.data<T>(), phi.data<T>(), T(eps), rows);
  });
}

void softmax_features(Tensor phi, Tensor x, double eps, Tensor lengths, bool keys,
                      int64_t features) {
  const DeviceWidths widths({.causal = false, .lengths = lengths}, phi.dim(2), phi.device());
  const Rows rows = rows_of(phi, widths, features);
  if (rows.count == 0) return;
  dispatch_float(phi.dtype(), [&]<class T>() {
    const int64_t d = x.dim(3), heads = phi.dim(0) * phi.dim(1);
    const T norm = T(1 / std::sqrt(double(features))), half = T(0.5 / std::sqrt(double(d)));
    const int64_t band = std::max(kBand, (rows.tokens + kBands - 1) / kBands);
    const int64_t bands = (rows.tokens + band - 1) / band;
    Tensor maxima;
    if (keys) {
      maxima = Tensor::empty({heads, bands}, phi.dtype(), phi.device());
      launch("softmax_features", band_maxima_kernel<T>, dim3(blocks_for(heads * bands, 1)),
             dim3(kThreads), 0, maxima.data<T>(), phi.data<T>(), rows, bands, band);
    }
    launch_rows("softmax_features", rows, softmax_kernel<T>, phi.data<T>(), x.data<T>(),
                keys ? maxima.data<T>() : nullptr, bands, norm, half, T(eps), d, rows);
  });
}

void softmax_features_backward(Tensor dprojected, Tensor dx, Tensor dphi, Tensor phi, Tensor x,
                               double eps, Tensor lengths, int64_t features) {
  const DeviceWidths widths({.causal = false, .lengths = lengths}, phi.dim(2), phi.device());
  const Rows rows = rows_of(phi, widths, features);
  dispatch_float(phi.dtype(), [&]<class T>() {
    const int64_t d = x.dim(3);
    launch_rows("softmax_features_backward", rows, softmax_backward_kernel<T>, dprojected.data<T>(),
                dx.data<T>(), dphi.data<T>(), phi.data<T>(), x.data<T>(),
                T(eps / std::sqrt(double(features))), T(1 / std::sqrt(double(d))), d, rows);
  });
}

void exp_features(Tensor phi, Tensor bias, Tensor lengths) {
  const DeviceWidths widths({.causal = false, .lengths = lengths}, phi.dim(2), phi.device());
  const Rows rows = rows_of(phi, widths, phi.dim(3));
  dispatch_float(phi.dtype(), [&]<class T>() {
    launch_rows("exp_features", rows, exp_kernel<T>, phi.data<T>(), bias.data<T>(), rows);
  });
}

void exp_features_backward(Tensor dx, Tensor dphi, Tensor phi) {
  dispatch_float(phi.dtype(), [&]<class T>() {
    launch_each("exp_features_backward", phi.numel(), exp_backward_kernel<T>, dx.data<T>(),
                dphi.data<T>(), phi.data<T>(), phi.numel());
  });
}

}  // namespace brine::cuda
