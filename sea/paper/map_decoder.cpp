// The convolutional decoder of the map of columns.
#include "sea/paper/map_decoder.h"

#include "autograd/ops.h"

namespace brine::sea {

MapDecoder::MapDecoder(nn::Init& init, int64_t heads, int64_t K, const MapDecoderShape& config,
                       bool causal)
    : config_(config), heads_(heads), K_(K) {
  const int64_t channels = heads * config.channel_expansion;
  if (config.norm) {
    norms_.push_back(&child<nn::LayerNorm>("norm_in", init, K / config.width_reduction));
  }
  for (int64_t i = 1; i <= config.depth; ++i) {
    convs_.push_back(&child<nn::Conv2d>(join("conv", i), init,
                                        nn::Conv2dConfig{.in = channels,
                                                         .out = channels,
                                                         .dilation = config.dilation,
                                                         .stride = i == 1 ? config.token_stride : 1,
                                                         .causal = causal}));
  }
  convs_.push_back(&child<nn::Conv2d>("conv_out", init,
                                      nn::Conv2dConfig{.in = channels,
                                                       .out = heads,
                                                       .kernel = config.last_kernel,
                                                       .causal = causal,
                                                       .bias = false}));
  // With a gain of 1 the first estimates would be far from uniform.
  if (config.norm) norms_.push_back(&child<nn::LayerNorm>("norm_out", init, K, 1e-5, 0.1));
}

Tensor MapDecoder::operator()(const Tensor& x, const Tensor& lengths,
                              std::vector<DecoderImage>* images) const {
  auto show = [images](const Tensor& image, const nn::Conv2d& reader) {
    if (images) images->push_back({image.detach(), reader.halo()});
  };
  const int64_t B = x.dim(0), T = x.dim(2), W = K_ / config_.width_reduction;
  const int64_t stride = config_.token_stride;
  Tensor rows = x;  // [B, H, T, c_h W]
  if (!norms_.empty()) {
    rows = reshape(x, {B, heads_, T, config_.channel_expansion, W});
    rows = reshape((*norms_[0])(rows), x.shape());
  }
  Tensor image = image_from_heads(rows, W, convs_[0]->halo(), lengths);
  const nn::Conv2d& last = *convs_.back();
  for (size_t i = 0; i + 1 < convs_.size(); ++i) {
    show(image, *convs_[i]);
    // The last convolution reads another image.
    const Halo next = i + 2 < convs_.size() ? convs_[i + 1]->halo() : Halo{};
    image = convs_[i]->of_padded(image, {.relu = true,
                                         .halo_before = next.before,
                                         .halo_after = next.after,
                                         .lengths = lengths,
                                         .row_stride = stride});
  }
  Tensor scores;  // [B, H, T, K]
  if (config_.last_kernel == 1) {
    show(image, last);
    scores = heads_from_image(last.of_padded(image, {}), T, K_, stride);
  } else {
    const Halo full = last.halo();
    image = upsample(image, {.tokens = T,
                             .columns = K_,
                             .stride = stride,
                             .halo_before = full.before,
                             .halo_after = full.after,
                             .lengths = lengths});
    show(image, last);
    scores = heads_from_image(last.of_padded(image, {}), T, K_);
  }
  return norms_.empty() ? scores : (*norms_[1])(scores);
}

}  // namespace brine::sea
