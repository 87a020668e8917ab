// What attention methods share that choose keys for every query from the exact scores: masks of the
// largest scores, and attention on a mask.
#pragma once

#include "autograd/ops.h"
#include "nn/attention/attention.h"

namespace brine::nn {

// The mask of the keys with the min(k, w) largest q . k of every row and head, w its visible keys;
// among equal ones the later key. q [B, H, T, d], k [B, G, T, d]. Time O(T^2), memory O(T k) and a
// tile of scores: no T x T map.
FlatCsr largest_keys(const Tensor& q, const Tensor& k, int64_t kept, const Visibility& visible);

// The same for one query of one sequence that sees the first `seen` keys of a cache: q [1, H, 1,
// d], k [1, G, S, d].
FlatCsr largest_cached_keys(const Tensor& q, const Tensor& k, int64_t kept, int64_t seen);

// An observer gets the rows of a mask as "row_pointers", "head_offsets" and "columns".
void show_mask(const AttentionInput& in, const FlatCsr& mask);

// Attention on the mask, softmax renormalised over its entries -> [B, T, H d]. An observer gets the
// mask and the probabilities.
Tensor attend_on(const AttentionInput& in, const FlatCsr& mask);

}  // namespace brine::nn
