// Masks of key blocks: their choice, and their forms for references and observers. Off the tape.
// The attention over them is in ops_attention.h.
#pragma once

#include "tensor/mask/blocks.h"
#include "tensor/mask/csr.h"

namespace brine {

// Shapes and settings are right, or an Error that starts with `op`.
void check_blocks(const char* op, const BlockConfig& config);
// The mask's memory, without values.
BlockMask empty_block_mask(const BlockConfig& config, int64_t B, int64_t G, int64_t tiles,
                           int64_t blocks, Device device);

// `parts` clusters of each `size` rows of x [B, G, T, d] in f32 or f64, complete ones alone. A row
// is one key, or as many as its logarithm in x_logs [B, G, T] says. Section 8.2.
KeyParts block_parts(const Tensor& x, const Tensor& x_logs, int64_t size, int64_t parts);
// The P parts of pairs of blocks from those of each: clusters of these.
KeyParts parts_of_pairs(const KeyParts& blocks, int64_t parts);
// The parts of keys [B, G, T, d] by the levels 0, 1... of super-blocks.
std::vector<KeyParts> block_parts_by_level(const Tensor& keys, const BlockConfig& config,
                                           int levels);

// Chooses blocks (docs/method.md sections 8.1 to 8.4 and 8.6) for the rows of `tiles` (undefined:
// all) of sequences with `visible`; T tokens.
BlockMask select_blocks(const BlockScores& scores, const BlockConfig& config,
                        const Visibility& visible, int64_t T, const Tensor& tiles = {});
// The same for one new row of every sequence, that sees width[b] keys (i64 [B]); `mask` has the
// tile of the row before it and becomes that of the row.
void select_blocks_step(const BlockMask& mask, const BlockScores& scores, const BlockConfig& config,
                        const Tensor& width);

// The mask by single keys u8 [B, H, rows, T] on the CPU, for references and observers.
Tensor block_mask_keys(const BlockMask& mask, int64_t heads, const Visibility& visible, int64_t T);

// The same as compressed rows, on the mask's device; made on the CPU.
FlatCsr blocks_to_csr(const BlockMask& mask, int64_t heads, const Visibility& visible, int64_t T);

// Kept keys of rows, over all rows that see a key: of the row itself, and of its tile.
struct KeptKeys {
  double row = 0, tile = 0;
};
KeptKeys kept_keys(const BlockMask& mask, const Visibility& visible, int64_t T);

}  // namespace brine
