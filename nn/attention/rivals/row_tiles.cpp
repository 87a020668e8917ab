// Tiles of rows and the losses over them, composed of the primitives.
#include "nn/attention/rivals/row_tiles.h"

#include <algorithm>
#include <cmath>

namespace brine::nn {
namespace {

constexpr int64_t kScoresOfTile = int64_t(1) << 20;  // of all heads
constexpr double kHidden = -1e30;                    // e^kHidden is 0, and it is finite

}  // namespace

std::vector<RowTile> row_tiles(const Visibility& visible, int64_t B, int64_t T, int64_t heads) {
  const RowWidths widths(visible, T);
  const int64_t step = std::max<int64_t>(16, kScoresOfTile / std::max<int64_t>(heads * T, 1));
  std::vector<RowTile> tiles;
  for (int64_t b = 0; b < B; ++b) {
    const int64_t length = widths.valid(b);
    for (int64_t t = 0; t < length; t += step) {
      const int64_t rows = std::min(step, length - t);
      tiles.push_back({b, t, rows, visible.causal ? t + rows : length});
    }
  }
  return tiles;
}

Tensor rows_of(const Tensor& x, const RowTile& tile) {
  return x.detach().slice(0, tile.sequence, 1).slice(2, tile.first, tile.rows).contiguous();
}

Tensor keys_of(const Tensor& x, const RowTile& tile) {
  return x.detach().slice(0, tile.sequence, 1).slice(2, 0, tile.keys).contiguous();
}

Tensor seen_keys(const RowTile& tile, bool causal, Device device) {
  return Tensor::filled({tile.rows, tile.keys}, Dtype::u8, device, [&](const Tensor& x) {
    uint8_t* seen = x.data<uint8_t>();
    for (int64_t i = 0; i < tile.rows; ++i) {
      for (int64_t j = 0; j < tile.keys; ++j) *seen++ = !causal || j <= tile.first + i;
    }
  });
}

Tensor project_heads(const Tensor& x, const Tensor& w) {
  const int64_t H = x.dim(1), T = x.dim(2);
  return reshape(matmul(reshape(x, {H, T, x.dim(3)}), w), {1, H, T, w.dim(2)});
}

Tensor log_softmax_where(const Tensor& scores, const Tensor& seen) {
  const Tensor x = where(seen, scores, kHidden);
  const Tensor z = x - max(x.detach(), {-1}, true);
  return z - log(sum(exp(z), {-1}, true));
}

Tensor exp_where(const Tensor& x, const Tensor& seen) { return where(seen, exp(x), 0); }

Tensor log_attention(const Tensor& q, const Tensor& k, const Tensor& seen) {
  NoGrad off;
  return log_softmax_where(scale(group_matmul(q, k, true), 1 / std::sqrt(double(q.dim(3)))), seen);
}

Tensor sum_of_kl(const Tensor& p, const Tensor& log_q) {
  const Tensor log_p = log(where(greater(p, 0), p, 1));
  return sum(p * (log_p - log_q));
}

Tensor sum_over_tiles(
    const std::vector<RowTile>& tiles, const std::vector<Tensor>& inputs,
    const std::function<Tensor(const RowTile&, const std::vector<Tensor>&)>& loss) {
  Tensor total;
  for (const RowTile& tile : tiles) {
    const Tensor tile_loss =
        checkpoint([loss, tile](const std::vector<Tensor>& x) { return loss(tile, x); }, inputs);
    total = total.defined() ? add(total, tile_loss) : tile_loss;
  }
  return total;
}

bool learns_selection(const AttentionInput& in) {
  return (in.random || in.returns_aux_loss) && grad_enabled();
}

Tensor with_selection_loss(const AttentionInput& in, const Tensor& y, const Tensor& loss,
                           double weight) {
  if (!loss.defined()) return y;
  const Tensor weighted = scale(loss, weight);
  if (in.tap) in.tap->put("selection_loss", in.returns_aux_loss ? weighted : loss);
  return in.returns_aux_loss ? y : attach_loss(y, scale(weighted, in.aux_loss_weight));
}

}  // namespace brine::nn
