// What methods share that score keys by tiles of rows: the tiles, and losses that teach a scorer
// the layer's dense attention without a T x T map.
#pragma once

#include <functional>
#include <vector>

#include "autograd/ops.h"
#include "nn/attention/attention.h"

namespace brine::nn {

// Rows [first, first + rows) of a sequence, which see only keys below `keys`.
struct RowTile {
  int64_t sequence, first, rows, keys;
};

// The valid rows of all sequences, in order; of one tile the scores of all heads fit a fixed
// memory.
std::vector<RowTile> row_tiles(const Visibility& visible, int64_t B, int64_t T, int64_t heads);

// x [B, H, T, c] -> the tile's rows [1, H, rows, c], or its keys [1, H, keys, c], off the tape.
Tensor rows_of(const Tensor& x, const RowTile& tile);
Tensor keys_of(const Tensor& x, const RowTile& tile);

// u8 [rows, keys]: 1 where the row sees the key.
Tensor seen_keys(const RowTile& tile, bool causal, Device device);

// x [1, H, T, d] times one matrix for each head, w [H, d, r] -> [1, H, T, r].
Tensor project_heads(const Tensor& x, const Tensor& w);

// log softmax over the last axis of scores [..., rows, keys] where seen [rows, keys] is not 0; a
// large negative number elsewhere.
Tensor log_softmax_where(const Tensor& scores, const Tensor& seen);
// e^x where seen is not 0, else 0.
Tensor exp_where(const Tensor& x, const Tensor& seen);
// The logarithm of the layer's dense attention of q [1, H, rows, d] to k [1, G, keys, d], both off
// the tape.
Tensor log_attention(const Tensor& q, const Tensor& k, const Tensor& seen);
// Sum over all rows of KL(p || q) for log q of the shape of p; 0 log 0 = 0 -> [1].
Tensor sum_of_kl(const Tensor& p, const Tensor& log_q);

// The sum of loss(tile) [1] over the tiles. Only the inputs of a tile's loss are kept for the
// backward pass, which computes the tile again: a loss reads the same parameters both times.
Tensor sum_over_tiles(
    const std::vector<RowTile>& tiles, const std::vector<Tensor>& inputs,
    const std::function<Tensor(const RowTile&, const std::vector<Tensor>&)>& loss);

// Whether a method computes its auxiliary loss for this input: in training, or on request.
bool learns_selection(const AttentionInput& in);
// y where there is no loss, else y with the loss [1] attached, `weight` times
// AttentionInput::aux_loss_weight; the loss itself is in the tap as "selection_loss". With
// AttentionInput::returns_aux_loss it is only there, weighted.
Tensor with_selection_loss(const AttentionInput& in, const Tensor& y, const Tensor& loss,
                           double weight);

}  // namespace brine::nn
