// The decoder for one new row of every sequence.
#include "autograd/ops.h"
#include "sea/paper/map_decoder.h"

namespace brine::sea {

RowDecoder RowDecoder::slots(int64_t first, int64_t count) const {
  RowDecoder out;
  for (const Tensor& w : windows) out.windows.push_back(w.slice(0, first, count));
  return out;
}

Tensor MapDecoder::step_rows(const Tensor& row, const RowDecoder& rows, bool fresh) const {
  const int64_t B = row.dim(0), W = K_ / config_.width_reduction;
  const size_t last = convs_.size() - 1;
  auto convolved = [&](size_t i, const nn::Conv2d& conv) {
    return convolve_row(rows.windows[i], conv.weight.value, conv.bias ? conv.bias->value : Tensor(),
                        {.dilation = conv.config.dilation, .relu = i != last});
  };
  auto push = [&](size_t i, const Tensor& x, int64_t columns) {
    const int64_t margin = (rows.windows[i].dim(2) - columns) / 2;
    push_row(rows.windows[i], x, margin);
  };
  push(0, row, W);
  const bool upsampled = config_.last_kernel > 1;
  const int64_t wide = upsampled ? K_ : W;
  if (fresh) {
    Tensor image;  // [B, W, channels]
    for (size_t i = 0; i < last; ++i) {
      image = convolved(i, *convs_[i]);
      if (i + 1 < last) push(i + 1, image, W);
    }
    if (upsampled) {
      image = upsample(image.view({B, 1, W, image.dim(2)}), {.tokens = 1, .columns = K_});
    }
    push(last, image.view({B, wide, image.dim(-1)}), wide);
  } else if (upsampled) {  // the row that the upsampling repeats
    const Tensor& window = rows.windows[last];
    const int64_t margin = (window.dim(2) - wide) / 2;
    push(last,
         window.slice(1, window.dim(1) - 1, 1)
             .slice(2, margin, wide)
             .contiguous()
             .view({B, wide, window.dim(3)}),
         wide);
  }
  const Tensor y = convolved(last, *convs_[last]);  // [B, wide, H]
  return heads_from_image(y.view({B, 1, wide, heads_}), 1, K_);
}

Tensor MapDecoder::step(const Tensor& x, const RowDecoder& rows, const Tensor& at) const {
  const int64_t B = x.dim(0), W = K_ / config_.width_reduction, stride = config_.token_stride;
  Tensor in = x;  // [B, H, 1, c_h W]
  if (!norms_.empty()) {
    in = (*norms_[0])(x.view({B, heads_, 1, config_.channel_expansion, W})).view(x.shape());
  }
  Tensor row = image_from_heads(in, W, {}, Tensor());
  row = row.view({B, W, row.dim(3)});
  Tensor scores;
  if (stride == 1) {
    scores = step_rows(row, rows, true);
  } else {
    scores = Tensor::empty({B, heads_, 1, K_}, x.dtype(), x.device());
    for (int64_t b = 0; b < B; ++b) {
      copy_into(scores.slice(0, b, 1), step_rows(row.slice(0, b, 1), rows.slots(b, 1),
                                                 at.data<int64_t>()[b] % stride == 0));
    }
  }
  return norms_.empty() ? scores : (*norms_[1])(scores);
}

}  // namespace brine::sea
