// The public ops of exact attention: tiled, over cached keys, on the entries of a sparse mask;
// ops.h includes this header. Selection and mask building have no gradient: they are in
// tensor/mask/csr.h.
#pragma once

#include "autograd/node.h"
#include "tensor/mask/blocks.h"
#include "tensor/mask/coded_cache.h"
#include "tensor/mask/csr.h"

namespace brine {

// ---- flash_attention.cpp
// softmax(q k^T / sqrt(d)) v over the visible keys, tiled, O(T) memory: q [B, H, T, d], k and v
// [B, G, T, d] -> [B, T, H d], heads concatenated; rows without a visible key are 0. G divides H:
// head h reads the keys and values of group h G / H. They are copied for cuDNN alone (16 bits).
Tensor flash_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                       const Visibility& visible);

// ---- cached_attention.cpp: one new query of every sequence, off the tape. The bits of a sequence
// do not depend on the other sequences or their number. Caches of f32 inputs may be bf16 or f16.
// cache [B, H, S, d] stores row [B, H, 1, d] at position at[b] (i64 [B]); throws when one is full.
void append_row(const Tensor& cache, const Tensor& row, const Tensor& at);
// softmax(q k^T / sqrt(d)) v over the keys first[b] <= j < last[b] -> [B, H, 1, d]; q [B, H, 1, d],
// k and v [B, G, S, d] as in flash_attention().
Tensor cached_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& first,
                        const Tensor& last);

// ---- block_attention.cpp
// softmax(q k^T / sqrt(d)) v over the visible keys of the blocks that each row keeps -> [B, H,
// rows, d], 0 at padding; q [B, H, rows, d] of the mask's tiles, k and v [B, G, T, d]. `kept` is
// the number of keys of a row for the count of costs. Where every block is kept the bits are those
// of flash_attention().
Tensor block_attention(const Tensor& q, const Tensor& k, const Tensor& v, const BlockMask& mask,
                       const Visibility& visible, int64_t kept);
// One new query of every sequence, off the tape: over the keys before width[b] (i64 [B]) of the
// blocks of its tile. q [B, H, 1, d], caches as in cached_attention().
Tensor block_attention_step(const Tensor& q, const Tensor& k, const Tensor& v,
                            const BlockMask& mask, const Tensor& width);

// ---- coded_cache.cpp: keys and values in 8 bits, off the tape
// The codes of the complete blocks of k and v [B, G, T, d]; steps and means are stored in a type.
// key_scale [G, d] as in key_codes(), the same of all sequences.
CodedCache code_cache(const Tensor& k, const Tensor& v, const Tensor& key_scale, int64_t block,
                      Dtype stored);
// The keys and values of the first lengths[b] (i64 [B]) tokens [B, G, max(lengths), d].
std::pair<Tensor, Tensor> decode_cache(const CodedCache& cache, const Tensor& lengths);
// As block_attention_step(); over all keys before width[b] when the mask is null.
Tensor coded_attention_step(const Tensor& q, const CodedCache& cache, const BlockMask* mask,
                            const Tensor& width);

// ---- sparse_attention.cpp
// q [B, H, T, d], k and v [B, G, S, d] as in flash_attention() -> P V [B, H, T, d], P = softmax(q
// k^T / sqrt(d)) over the entries of the mask; 0 for a head without entries. `probabilities`, when
// given, receives P [entries] in the order of csr.columns, off the tape. k and v may be bf16 or f16
// for q in f32; then there are no gradients.
Tensor sparse_attention(const Tensor& q, const Tensor& k, const Tensor& v, const FlatCsr& csr,
                        Tensor* probabilities = nullptr);

}  // namespace brine
