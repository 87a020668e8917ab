// Masks of key blocks: their choice, and their forms for references and observers. Off the tape.
// The attention over them is in ops_attention.h.
#pragma once

#include <optional>

#include "tensor/mask/blocks.h"
#include "tensor/mask/csr.h"

namespace brine {

// Throws an Error that starts with `op` if a setting is not valid.
void check_blocks(const char* op, const BlockConfig& config);
// The mask's memory, without values.
BlockMask empty_block_mask(const BlockConfig& config, int64_t B, int64_t G, int64_t tiles,
                           int64_t blocks, Device device);

// The 4-bit copies and the moments of the complete blocks of keys [B, G, T, d] in f32 or f64, with
// the moments of super-blocks up to `levels` levels; key_scale [G, d]. Steps and means have values
// of the type `stored`, none: of the keys'. docs/method.md section 8.2.
KeyCodes key_codes(const Tensor& keys, const Tensor& key_scale, const BlockConfig& config,
                   int levels = 1, std::optional<Dtype> stored = {});
// The moments of super-blocks [B, G, n / 2, 2 d] from those of their halves [B, G, n, 2 d].
Tensor moments_of_pairs(const Tensor& halves);
// The scale [G, d] of the channels of keys [B, G, T, d]: the square root of the root mean square of
// k - mean key of its block, over complete blocks; 1 where a channel is constant or there is no
// block. docs/method.md section 8.6.
Tensor calibrated_key_scale(const Tensor& keys, const Tensor& lengths, int64_t block);

// Chooses blocks (docs/method.md section 8) for the rows of `tiles` (undefined: all) of sequences
// with `visible`; T tokens.
BlockMask select_blocks(const BlockScores& scores, const BlockConfig& config,
                        const Visibility& visible, int64_t T, const Tensor& tiles = {});
// The same for one new row of every sequence, that sees width[b] keys (i64 [B]); `mask` has the
// tile of the row before it and becomes that of the row.
void select_blocks_step(const BlockMask& mask, const BlockScores& scores, const BlockConfig& config,
                        const Tensor& width);

// The mask of all tiles by single keys, for references and observers: on its device, made on the
// CPU.
FlatCsr blocks_to_csr(const BlockMask& mask, int64_t heads, const Visibility& visible, int64_t T);

// The mean number of kept keys of a mask of all tiles, over the rows that see a key.
double kept_keys(const BlockMask& mask, const Visibility& visible, int64_t T);

}  // namespace brine
