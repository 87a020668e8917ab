// Learned features, from products with the inputs: a warp for every row.
#include "tensor/cuda/core/common.cuh"
#include "tensor/kernels/estimator.h"

namespace brine::cuda {
namespace {

// Rows of phi [B, G, T, m], and which of them are padding.
struct Rows {
  int64_t count, heads, tokens, m;
  RowWidths widths;

  __device__ bool visible(int64_t r) const {
    return r % tokens < widths.length(r / (heads * tokens));
  }
};

Rows rows_of(const Tensor& phi, const DeviceWidths& widths) {
  return {phi.rows(), phi.dim(1), phi.dim(2), phi.dim(3), widths.get()};
}

__device__ int64_t lane() { return int64_t(threadIdx.x) % kWarp; }

template <class T>
__global__ void exp_kernel(T* phi, const T* bias, Rows rows) {
  const int64_t r = piece() / kWarp;
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

}  // namespace

void exp_features(Tensor phi, Tensor bias, Tensor lengths) {
  const DeviceWidths widths({.causal = false, .lengths = lengths}, phi.dim(2), phi.device());
  const Rows rows = rows_of(phi, widths);
  dispatch_float(phi.dtype(), [&]<class T>() {
    launch_each("exp_features", rows.count * kWarp, exp_kernel<T>, phi.data<T>(), bias.data<T>(),
                rows);
  });
}

void exp_features_backward(Tensor dx, Tensor dphi, Tensor phi) {
  dispatch_float(phi.dtype(), [&]<class T>() {
    launch_each("exp_features_backward", phi.numel(), exp_backward_kernel<T>, dx.data<T>(),
                dphi.data<T>(), phi.data<T>(), phi.numel());
  });
}

}  // namespace brine::cuda
