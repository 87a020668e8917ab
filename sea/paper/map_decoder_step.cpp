// The decoder for one new row of every sequence.
#include "autograd/ops.h"
#include "sea/paper/map_decoder.h"

namespace brine::sea {

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
