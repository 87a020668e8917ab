// What attention methods with a mask of key blocks share.
#pragma once

#include "nn/attention/attention.h"
#include "tensor/mask/blocks.h"

namespace brine::nn {

// Attention of q [B, H, rows, d], rows of the mask's tiles, over the kept blocks -> the same shape;
// by a T x T mask with options.dense_path.
Tensor attend_blocks(const AttentionInput& in, const Tensor& q, const BlockMask& mask,
                     const BlockConfig& config);

// A part of a prompt that goes on after the tokens of a slot: made before the state is extended.
struct PromptPart {
  // Throws unless it begins a block.
  PromptPart(const AttentionInput& in, const BlockConfig& config);
  // Attention of the part's queries over the state's keys in the blocks that a mask of its tiles
  // keeps -> [1, n, H d].
  Tensor attend(const BlockMask& mask, const BlockConfig& config) const;

  const AttentionInput& in;
  const KeyValueState& state;
  int64_t tokens;      // of the sequence, with the part
  Visibility visible;  // of a sequence of so many
  Tensor tiles;        // as BlockMask::tiles
};
// Whether the input is such a part.
bool continues(const AttentionInput& in);
// Attention of such a part, with which the state is extended, to the blocks that every row keeps
// without a choice -> [1, n, H d].
Tensor attend_window(const AttentionInput& in, const BlockConfig& config);

// Tap entries of a mask with all tiles: "kept_keys" f64 [1], the mean number of keys of a row, and
// if `keys`, the mask by keys as "row_pointers", "head_offsets" and "columns" (FlatCsr), for which
// only short sequences have memory; and of these "probabilities" if they are requested.
void show_blocks(const AttentionInput& in, const BlockMask& mask, bool keys);

}  // namespace brine::nn
