// The convolutional decoder of the map of columns.
#include "sea/paper/map_decoder.h"

#include "autograd/ops.h"

namespace brine::sea {

namespace {

constexpr int64_t kConvolutions = 2;  // before the upsampling

}  // namespace

MapDecoder::MapDecoder(nn::Init& init, int64_t heads, int64_t K, bool causal)
    : heads_(heads), K_(K), stride_(causal ? 1 : kWidthReduction) {
  const int64_t channels = heads * kChannelExpansion;
  if (causal) norms_.push_back(&child<nn::LayerNorm>("norm_in", init, K / kWidthReduction));
  for (int64_t i = 1; i <= kConvolutions; ++i) {
    convs_.push_back(&child<nn::Conv2d>(
        join("conv", i), init,
        nn::Conv2dConfig{
            .in = channels, .out = channels, .stride = i == 1 ? stride_ : 1, .causal = causal}));
  }
  convs_.push_back(&child<nn::Conv2d>(
      "conv_out", init,
      nn::Conv2dConfig{.in = channels, .out = heads, .causal = causal, .bias = false}));
  // With a gain of 1 the first estimates would be far from uniform.
  if (causal) norms_.push_back(&child<nn::LayerNorm>("norm_out", init, K, 1e-5, 0.1));
}

Tensor MapDecoder::normed(const Tensor& x) const {
  if (norms_.empty()) return x;
  const Shape split{x.dim(0), heads_, x.dim(2), kChannelExpansion, K_ / kWidthReduction};
  return reshape((*norms_[0])(reshape(x, split)), x.shape());
}

Tensor MapDecoder::operator()(const Tensor& x, const Tensor& lengths,
                              std::vector<Tensor>* images) const {
  auto show = [images](const Tensor& image) {
    if (images) images->push_back(image.detach());
  };
  Tensor image = image_from_heads(normed(x), K_ / kWidthReduction, convs_[0]->halo(), lengths);
  for (size_t i = 0; i < kConvolutions; ++i) {
    show(image);
    // The last convolution reads another image.
    const Halo next = i + 1 < kConvolutions ? convs_[i + 1]->halo() : Halo{};
    image = convs_[i]->of_padded(image, {.relu = true,
                                         .halo_before = next.before,
                                         .halo_after = next.after,
                                         .lengths = lengths,
                                         .row_stride = stride_});
  }
  const nn::Conv2d& last = *convs_.back();
  const Halo full = last.halo();
  image = upsample(image, {.tokens = x.dim(2),
                           .columns = K_,
                           .stride = stride_,
                           .halo_before = full.before,
                           .halo_after = full.after,
                           .lengths = lengths});
  show(image);
  const Tensor scores = heads_from_image(last.of_padded(image, {}));  // [B, H, T, K]
  return norms_.empty() ? scores : (*norms_[1])(scores);
}

RowDecoder RowDecoder::slots(int64_t first, int64_t count) const {
  RowDecoder out;
  for (const Tensor& w : windows) out.windows.push_back(w.slice(0, first, count));
  return out;
}

Tensor MapDecoder::step(const Tensor& x, const RowDecoder& rows) const {
  const int64_t B = x.dim(0);
  const size_t last = convs_.size() - 1;
  // Of the last rows of image i, of which `row` [B, columns, channels] is the newest.
  auto convolved = [&](size_t i, const Tensor& row) {
    push_row(rows.windows[i], row, (rows.windows[i].dim(2) - row.dim(1)) / 2);
    const nn::Conv2d& conv = *convs_[i];
    return convolve_row(rows.windows[i], conv.weight.value, conv.bias ? conv.bias->value : Tensor(),
                        {.relu = i != last});
  };
  auto row_of = [B](const Tensor& image) { return image.view({B, image.dim(2), image.dim(3)}); };
  auto image_of = [B](const Tensor& row) { return row.view({B, 1, row.dim(1), row.dim(2)}); };
  Tensor row = row_of(image_from_heads(normed(x), K_ / kWidthReduction, {}, Tensor()));
  for (size_t i = 0; i < last; ++i) row = convolved(i, row);
  row = row_of(upsample(image_of(row), {.tokens = 1, .columns = K_}));
  return (*norms_[1])(heads_from_image(image_of(convolved(last, row))));
}

}  // namespace brine::sea
