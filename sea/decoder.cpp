// The convolutional decoder of the estimator.
#include <cmath>

#include "sea/estimator.h"

namespace brine::sea {

Conv::Conv(nn::Init& init, int64_t in, int64_t out, int64_t kernel, bool with_bias)
    : weight(parameter("weight", init.uniform({out, in, kernel, kernel},
                                              1 / std::sqrt(double(in * kernel * kernel))))),
      bias(with_bias
               ? &parameter("bias",
                            init.uniform({out}, 1 / std::sqrt(double(in * kernel * kernel))), false)
               : nullptr) {}

Tensor Conv::operator()(const Tensor& x, const Convolution& conf) const {
  return conv2d(x, weight, bias ? bias->value : Tensor(), conf);
}

ConvDecoder::ConvDecoder(nn::Init& init, int64_t heads, int64_t K, const Decoder& config,
                         bool causal)
    : config_(config), heads_(heads), K_(K), causal_(causal) {
  const int64_t channels = heads * config.channel_expansion;
  if (config.norm) norm_in_ = &child<nn::LayerNorm>("norm_in", init, K / config.width_reduction);
  for (int64_t i = 1; i <= config.depth; ++i) {
    convs_.push_back(&child<Conv>(join("conv", i), init, channels, channels, 3));
  }
  last_ = &child<Conv>("conv_out", init, channels, heads, config.last_kernel, false);
  // With a gain of 1 the first estimates would lie far from uniform.
  if (config.norm) norm_out_ = &child<nn::LayerNorm>("norm_out", init, K, 1e-5, 0.1);
}

int64_t ConvDecoder::history() const {
  return 2 * config_.dilation * config_.depth + (config_.last_kernel - 1);
}

Halo ConvDecoder::halo(int64_t kernel, int64_t dilation) const {
  const int64_t span = (kernel - 1) * dilation;
  return causal_ ? Halo{span, 0} : Halo{span / 2, span / 2};
}

Tensor ConvDecoder::operator()(const Tensor& x, const Tensor& lengths) const {
  const int64_t B = x.dim(0), T = x.dim(2), W = K_ / config_.width_reduction;
  const int64_t stride = config_.token_stride;
  Tensor rows = x;  // [B, H, T, c_h W]
  if (norm_in_) {
    rows = reshape(x, {B, heads_, T, config_.channel_expansion, W});
    rows = reshape((*norm_in_)(rows), x.shape());
  }
  const Halo around = halo(3, config_.dilation);
  Tensor image = image_from_heads(rows, W, around, lengths);
  for (size_t i = 0; i < convs_.size(); ++i) {
    const bool more = i + 1 < convs_.size();
    image = (*convs_[i])(image, {.dilation = config_.dilation,
                                 .stride = i == 0 ? stride : 1,
                                 .relu = true,
                                 .halo_before = more ? around.before : 0,
                                 .halo_after = more ? around.after : 0,
                                 .lengths = lengths,
                                 .row_stride = stride});
  }
  Tensor scores;  // [B, H, T, K]
  if (config_.last_kernel == 1) {
    scores = heads_from_image((*last_)(image, {}), T, K_, stride);
  } else {
    const Halo full = halo(config_.last_kernel, 1);
    image = upsample(image, {.tokens = T,
                             .columns = K_,
                             .stride = stride,
                             .halo_before = full.before,
                             .halo_after = full.after,
                             .lengths = lengths});
    scores = heads_from_image((*last_)(image, {}), T, K_);
  }
  return norm_out_ ? (*norm_out_)(scores) : scores;
}

}  // namespace brine::sea
