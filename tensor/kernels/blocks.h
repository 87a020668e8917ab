// Kernels of masks of key blocks (docs/method.md section 8). See kernel.h for the contract and
// mask/blocks.h for the mask. Each section is a family.
#pragma once

#include "tensor/kernels/kernel.h"
#include "tensor/mask/blocks.h"
#include "tensor/mask/coded_cache.h"

namespace brine {

// ---- select_blocks: copies of keys in 4 bits, the blocks that tiles of rows keep
// keys.codes, keys.steps and keys.moments[0] of the N = T / block complete blocks of k [B, G, T, d]
// in f32 or f64; key_scale [G, d]. Steps and means are rounded to `stored` before the codes are
// made, so that the codes are those of what a state keeps.
BRINE_KERNEL(key_codes, KeyCodes keys, Tensor k, Tensor key_scale, int64_t block, Dtype stored)
// See tensor/mask/blocks.h. mask.counts and mask.entries are written; rows of padding choose
// nothing. nan_count i64 [1]: above 0 if a score is not finite.
BRINE_KERNEL(select_blocks, BlockMask mask, Tensor nan_count, BlockScores scores,
             BlockConfig config, Visibility visible)
// One row of every sequence, at width[b] - 1: the mask is read where it is not the first of its
// tile. Steps and moments may be bf16 or f16 on the CPU.
BRINE_KERNEL(select_blocks_step, BlockMask mask, Tensor nan_count, BlockScores scores,
             BlockConfig config, Tensor width)

// ---- block_attention: attention over lists of blocks
// y [B, H, rows, d] = softmax(scale q k^T) v over the visible keys of the blocks that a row keeps;
// lse [B, H, rows] as in flash_attention; 0 in rows of padding. q [B, H, rows, d], rows those of
// the mask's tiles; k and v [B, G, T, d]; all may be bf16 or f16 (then the rest is f32). Where
// every block is kept the bits are those of flash_attention.
BRINE_KERNEL(block_attention, Tensor y, Tensor lse, Tensor q, Tensor k, Tensor v, BlockMask mask,
             Visibility visible, double scale)
// dk and dv [B, G, T, d] are summed over the heads of a group. Any of dq, dk, dv may be undefined.
BRINE_KERNEL(block_attention_backward, Tensor dq, Tensor dk, Tensor dv, Tensor dy, Tensor q,
             Tensor k, Tensor v, Tensor y, Tensor lse, BlockMask mask, Visibility visible,
             double scale)
// y [B, H, 1, d] of one query of every sequence over the keys before width[b] of the blocks of its
// tile; caches as in cached_attention.
BRINE_KERNEL(block_attention_step, Tensor y, Tensor q, Tensor k, Tensor v, BlockMask mask,
             Tensor width, double scale)

// ---- coded_cache: keys and values in 8 bits
// The low codes of the keys and the bytes of the values of the N = T / block complete blocks of k
// and v [B, G, T, d]; keys and value_steps may be bf16 or f16. value_steps are written, the rest of
// `keys` is read.
BRINE_KERNEL(code_cache, Tensor low_codes, Tensor values, Tensor value_steps, KeyCodes keys,
             Tensor k, Tensor v, Tensor key_scale)
// k and v [B, G, S, d] of the first lengths[b] tokens; later rows are not written.
BRINE_KERNEL(decode_cache, Tensor k, Tensor v, CodedCache cache, Tensor lengths)
// As block_attention_step; without mask.counts as cached_attention.
BRINE_KERNEL(coded_attention_step, Tensor y, Tensor q, CodedCache cache, BlockMask mask,
             Tensor width, double scale)

}  // namespace brine
