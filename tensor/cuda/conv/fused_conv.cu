// Convolutions by cuDNN: weights are converted to channels last and their gradient back, gradients
// of the result are rounded and zeroed at padding, and rows without tokens become 0 afterwards.
#include "tensor/cuda/conv/conv.cuh"
#include "tensor/cuda/conv/cudnn.h"
#include "tensor/cuda/conv/fused.h"

namespace brine::cuda {
namespace {

// to [O, taps, C] of from [O, C, taps].
template <class T>
__global__ void turn_weights_kernel(T* to, const T* from, int64_t C, int64_t taps, int64_t n) {
  const int64_t i = piece();
  if (i >= n) return;
  const int64_t c = i % C, tap = i / C % taps, o = i / C / taps;
  to[i] = from[(o * C + c) * taps + tap];
}

// dw [O, C, taps] += from [O, taps, C].
__global__ void add_weights_kernel(float* dw, const float* from, int64_t C, int64_t taps,
                                   int64_t n) {
  const int64_t i = piece();
  if (i >= n) return;
  const int64_t tap = i % taps, c = i / taps % C, o = i / taps / C;
  dw[i] += from[(o * taps + tap) * C + c];
}

// y [B, rows_out, W, O] = 0 in the halo and in rows without tokens; the others are not read.
__global__ void clear_rows_kernel(float* y, ConvSizes s, int64_t n) {
  const int64_t i = piece();
  if (i >= n) return;
  const int64_t row = i / s.O / s.W, b = row / s.rows_out, r = row % s.rows_out - s.before;
  if (r < 0 || r >= s.live(b)) y[i] = 0;
}

// g [B, rows, W, O] = dy in live rows where y > 0, rounded.
template <class T>
__global__ void gather_kernel(T* g, const float* dy, const float* y, ConvSizes s, int64_t n) {
  const int64_t i = piece();
  if (i >= n) return;
  const int64_t line = s.W * s.O, at = i % line, row = i / line, b = row / s.rows;
  const int64_t r = row % s.rows, from = (b * s.rows_out + s.before + r) * line + at;
  g[i] = T(r < s.live(b) && (!y || y[from] > 0) ? dy[from] : 0.0f);
}

template <class F>
void dispatch_16_bits(Dtype type, F&& f) {
  type == Dtype::bf16 ? f.template operator()<bf16>() : f.template operator()<f16>();
}

Tensor turned(const Tensor& w, const ConvSizes& s) {
  Tensor to = Tensor::empty({s.O, s.kT, s.kW, s.C}, w.dtype(), w.device());
  dispatch_16_bits(w.dtype(), [&]<class T>() {
    launch_each("conv2d", w.numel(), turn_weights_kernel<T>, to.data<T>(), w.data<T>(), s.C,
                s.taps(), w.numel());
  });
  return to;
}

Tensor gathered(const Tensor& dy, const Tensor& y, const ConvSizes& s, Dtype type) {
  Tensor g = Tensor::empty({s.B, s.rows, s.W, s.O}, type, dy.device());
  dispatch_16_bits(type, [&]<class T>() {
    launch_each("conv2d_backward", g.numel(), gather_kernel<T>, g.data<T>(), dy.data<float>(),
                s.relu ? y.data<float>() : nullptr, s, g.numel());
  });
  return g;
}

FusedConv described(ConvPass pass, const ConvSizes& s, Dtype type) {
  return {.pass = pass,
          .type = type,
          .B = s.B,
          .rows_in = s.rows_in,
          .W = s.W,
          .C = s.C,
          .O = s.O,
          .kT = s.kT,
          .kW = s.kW,
          .rows = s.rows,
          .step = s.rows * s.W * s.O,
          .dilation = s.dilation,
          .stride = s.stride,
          .margin = s.margin};
}

// cuDNN counts in 32 bits and does not support empty tensors.
bool takes(const ConvSizes& s, const Tensor& x, const Tensor& w) {
  constexpr int64_t kMax = int64_t(1) << 31;
  return cudnn_serves() && has_16_bits(x.dtype()) && w.dtype() == x.dtype() && s.rows > 0 &&
         x.numel() > 0 && w.numel() > 0 && x.numel() < kMax && s.B * s.rows_out * s.W * s.O < kMax;
}

}  // namespace

bool fused_conv2d(Tensor y, Tensor x, Tensor w, Tensor b, const Convolution& conf) {
  const OnDevice lengths(conf.lengths, x.device());
  const ConvSizes s(x, w, conf, lengths);
  if (!takes(s, x, w)) return false;
  FusedConv conv = described(ConvPass::forward, s, x.dtype());
  conv.step = s.rows_out * s.W * s.O;
  conv.bias = b.defined();
  conv.relu = s.relu;
  const Tensor filter = turned(w, s);
  const FusedConvData data{.image = x.raw(),
                           .filter = filter.raw(),
                           .result = y.data<float>() + s.before * s.W * s.O,
                           .bias = b.defined() ? b.raw() : nullptr};
  if (!cudnn_conv(conv, data, x.device())) return false;
  if (s.lengths || s.rows_out > s.rows) {
    launch_each("conv2d", y.numel(), clear_rows_kernel, y.data<float>(), s, y.numel());
  }
  return true;
}

bool fused_data_gradient(Tensor dx, Tensor dy, Tensor x, Tensor w, Tensor y,
                         const Convolution& conf) {
  const OnDevice lengths(conf.lengths, x.device());
  const ConvSizes s(x, w, conf, lengths);
  if (!takes(s, x, w)) return false;
  const Tensor sums = gathered(dy, y, s, x.dtype()), filter = turned(w, s);
  return cudnn_conv(described(ConvPass::data, s, x.dtype()),
                    {.image = dx.raw(), .filter = filter.raw(), .result = sums.raw()}, x.device());
}

bool fused_weight_gradient(Tensor dw, Tensor dy, Tensor x, Tensor w, Tensor y,
                           const Convolution& conf) {
  const OnDevice lengths(conf.lengths, x.device());
  const ConvSizes s(x, w, conf, lengths);
  if (!takes(s, x, w)) return false;
  const Tensor sums = gathered(dy, y, s, x.dtype());
  const Tensor filter = Tensor::empty({s.O, s.kT, s.kW, s.C}, Dtype::f32, x.device());
  if (!cudnn_conv(described(ConvPass::weights, s, x.dtype()),
                  {.image = x.raw(), .filter = filter.raw(), .result = sums.raw()}, x.device())) {
    return false;
  }
  launch_each("conv2d_backward", dw.numel(), add_weights_kernel, dw.data<float>(),
              filter.data<float>(), s.C, s.taps(), dw.numel());
  return true;
}

}  // namespace brine::cuda
