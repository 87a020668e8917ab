// The convolutional decoder of the map of columns.
#include "sea/estimator.h"

namespace brine::sea {

MapDecoder::MapDecoder(nn::Init& init, int64_t heads, int64_t K, const MapDecoderShape& config,
                       bool causal)
    : config_(config), heads_(heads), K_(K) {
  const int64_t channels = heads * config.channel_expansion;
  if (config.norm) norm_in_ = &child<nn::LayerNorm>("norm_in", init, K / config.width_reduction);
  for (int64_t i = 1; i <= config.depth; ++i) {
    convs_.push_back(&child<nn::Conv2d>(join("conv", i), init,
                                        nn::Conv2dConfig{.in = channels,
                                                         .out = channels,
                                                         .dilation = config.dilation,
                                                         .stride = i == 1 ? config.token_stride : 1,
                                                         .causal = causal}));
  }
  last_ = &child<nn::Conv2d>("conv_out", init,
                             nn::Conv2dConfig{.in = channels,
                                              .out = heads,
                                              .kernel = config.last_kernel,
                                              .causal = causal,
                                              .bias = false});
  // With a gain of 1 the first estimates would be far from uniform.
  if (config.norm) norm_out_ = &child<nn::LayerNorm>("norm_out", init, K, 1e-5, 0.1);
}

Tensor MapDecoder::operator()(const Tensor& x, const Tensor& lengths,
                              std::vector<Tensor>* images) const {
  auto show = [images](const Tensor& image) {
    if (images) images->push_back(image.detach());
  };
  const int64_t B = x.dim(0), T = x.dim(2), W = K_ / config_.width_reduction;
  const int64_t stride = config_.token_stride;
  Tensor rows = x;  // [B, H, T, c_h W]
  if (norm_in_) {
    rows = reshape(x, {B, heads_, T, config_.channel_expansion, W});
    rows = reshape((*norm_in_)(rows), x.shape());
  }
  Tensor image = image_from_heads(rows, W, convs_[0]->halo(), lengths);
  for (size_t i = 0; i < convs_.size(); ++i) {
    show(image);
    const Halo next = i + 1 < convs_.size() ? convs_[i + 1]->halo() : Halo{};
    image = convs_[i]->of_padded(image, {.relu = true,
                                         .halo_before = next.before,
                                         .halo_after = next.after,
                                         .lengths = lengths,
                                         .row_stride = stride});
  }
  Tensor scores;  // [B, H, T, K]
  if (config_.last_kernel == 1) {
    show(image);
    scores = heads_from_image(last_->of_padded(image, {}), T, K_, stride);
  } else {
    const Halo full = last_->halo();
    image = upsample(image, {.tokens = T,
                             .columns = K_,
                             .stride = stride,
                             .halo_before = full.before,
                             .halo_after = full.after,
                             .lengths = lengths});
    show(image);
    scores = heads_from_image(last_->of_padded(image, {}), T, K_);
  }
  return norm_out_ ? (*norm_out_)(scores) : scores;
}

}  // namespace brine::sea
