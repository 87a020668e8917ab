// What attention methods with a mask of key blocks share.
#pragma once

#include "nn/attention/attention.h"
#include "tensor/mask/blocks.h"

namespace brine::nn {

// Attention of q [B, H, rows, d], rows of the mask's tiles, over the kept blocks -> the same shape;
// by a T x T mask with options.dense_path.
Tensor attend_blocks(const AttentionInput& in, const Tensor& q, const BlockMask& mask,
                     const BlockConfig& config);

// Tap entries of a mask with all tiles: "kept_keys" f64 [1], the mean number of keys of a row, and
// if `keys`, the mask by keys as "row_pointers", "head_offsets" and "columns" (FlatCsr), for which
// only short sequences have memory; and of these "probabilities" if they are requested.
void show_blocks(const AttentionInput& in, const BlockMask& mask, bool keys);

}  // namespace brine::nn
