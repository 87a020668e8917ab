// Attention by cuDNN: lengths are converted to its form, heads that share keys and values get
// copies of them, its 16-bit result is widened, and rows of padding become 0.
#include "tensor/cuda/attention/cudnn.h"
#include "tensor/cuda/attention/fused.h"
#include "tensor/cuda/core/common.cuh"
#include "tensor/kernels/dense.h"

namespace brine::cuda {
namespace {

// In addition to cuDNN's limits: the supported sizes of its fused kernels.
constexpr int64_t kWidest = 128;

// A sequence without tokens gets one token, whose result is discarded.
__global__ void lengths_kernel(int32_t* to, const RowWidths widths, int64_t B) {
  const int64_t b = piece();
  if (b >= B) return;
  const int64_t valid = widths.valid(b);
  to[b] = int32_t(valid > 1 ? valid : 1);
}

// y [B, T, C] = from in rows with tokens, 0 in the others.
template <class T>
__global__ void widen_kernel(float* y, const T* from, const RowWidths widths, int64_t C,
                             int64_t n) {
  const int64_t i = piece();
  if (i >= n) return;
  const int64_t row = i / C, b = row / widths.rows, t = row % widths.rows;
  y[i] = t < widths.valid(b) ? float(from[i]) : 0.0f;
}

// lse [B, H, T] = 0 in rows of padding.
__global__ void clear_kernel(float* lse, const RowWidths widths, int64_t H, int64_t n) {
  const int64_t i = piece();
  if (i >= n) return;
  const int64_t b = i / widths.rows / H, t = i % widths.rows;
  if (t >= widths.valid(b)) lse[i] = 0;
}

// x [B, G, T, d] -> [B, H, T, d], head h is group h G / H.
Tensor of_heads(const Tensor& x, int64_t H) {
  const int64_t B = x.dim(0), G = x.dim(1), T = x.dim(2), d = x.dim(3);
  if (G == H) return x;
  Tensor y = Tensor::empty({B, H, T, d}, x.dtype(), x.device());
  copy(y.view({B, G, H / G, T * d}), x.as_strided({B, G, H / G, T * d}, {G * T * d, T * d, 0, 1}));
  return y;
}

}  // namespace

bool fused_flash_attention(Tensor y, Tensor lse, Tensor q, Tensor k, Tensor v,
                           const Visibility& visible, double scale) {
  constexpr int64_t kMax = int64_t(1) << 31;
  const int64_t B = q.dim(0), H = q.dim(1), T = q.dim(2), d = q.dim(3);
  if (!cudnn_serves() || !has_16_bits(q.dtype()) || d % 8 != 0 || d > kWidest ||
      q.numel() >= kMax) {
    return false;
  }
  const Device device = q.device();
  const DeviceWidths kept(visible, T, device);
  const RowWidths widths = kept.get();
  const bool padded = widths.lengths != nullptr;
  Tensor narrow = Tensor::empty(y.shape(), q.dtype(), device), lengths;
  if (padded) {
    lengths = Tensor::empty({B}, Dtype::i32, device);
    launch_each("flash_attention", B, lengths_kernel, lengths.data<int32_t>(), widths, B);
  }
  k = of_heads(k, H), v = of_heads(v, H);
  const FusedAttention attention{.type = q.dtype(),
                                 .B = B,
                                 .H = H,
                                 .T = T,
                                 .d = d,
                                 .causal = visible.causal,
                                 .padded = padded};
  const FusedAttentionData data{.q = q.raw(),
                                .k = k.raw(),
                                .v = v.raw(),
                                .lengths = padded ? lengths.data<int32_t>() : nullptr,
                                .y = narrow.raw(),
                                .lse = lse.data<float>(),
                                .scale = float(scale)};
  if (!cudnn_attention(attention, data, device)) return false;
  auto widen = [&]<class R>() {
    launch_each("flash_attention", y.numel(), widen_kernel<R>, y.data<float>(), narrow.data<R>(),
                widths, H * d, y.numel());
  };
  q.dtype() == Dtype::bf16 ? widen.template operator()<bf16>() : widen.template operator()<f16>();
  if (padded) {
    launch_each("flash_attention", lse.numel(), clear_kernel, lse.data<float>(), widths, H,
                lse.numel());
  }
  return true;
}

}  // namespace brine::cuda
