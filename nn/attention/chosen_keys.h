// What attention methods share that choose keys for every query from the exact scores: masks of the
// largest scores, and attention on a mask.
#pragma once

#include <functional>

#include "nn/attention/cached.h"

namespace brine::nn {

// Scores [1, H, rows, keys] of rows [first, first + rows) of a sequence and its first keys; or
// [1, 1, rows, keys], which all heads share. They are called by tiles and may be overwritten.
using TileScores =
    std::function<Tensor(int64_t sequence, int64_t first, int64_t rows, int64_t keys)>;

// The mask of the keys with the min(k, w) largest scores of every row and head of q [B, H, T, d], w
// its visible keys; among equal ones the later key. Memory O(T k) and a tile of scores.
FlatCsr largest_scores(const Shape& q, Device device, const TileScores& scores, int64_t kept,
                       const Visibility& visible);

// The same for one query of one sequence, from its scores [1, H or 1, 1, seen] of the first keys of
// a cache of `keys`.
FlatCsr largest_cached_scores(const Tensor& scores, int64_t heads, int64_t kept, int64_t keys);

// The mask of the keys with the min(k, w) largest q . k of every row and head, w its visible keys;
// among equal ones the later key. q [B, H, T, d], k [B, G, T, d]. Time O(T^2), memory O(T k) and a
// tile of scores: no T x T map.
FlatCsr largest_keys(const Tensor& q, const Tensor& k, int64_t kept, const Visibility& visible);

// The same for one query of one sequence that sees the first `seen` keys of a cache: q [1, H, 1,
// d], k [1, G, S, d].
FlatCsr largest_cached_keys(const Tensor& q, const Tensor& k, int64_t kept, int64_t seen);

// An observer gets the rows of a mask as "row_pointers", "head_offsets" and "columns".
void show_mask(const AttentionInput& in, const FlatCsr& mask);

// Keys, values, and features of the keys: a tensor `name` [batch, heads, capacity, size].
struct FeatureState : KeyValueState {
  FeatureState(const StateRequest& r, const AttentionShape& shape, const std::string& name,
               int64_t heads, int64_t size)
      : KeyValueState(r, shape),
        features(part(name, {r.batch, heads, r.capacity, size}, r.dtype, 2)) {}

  // The prompts of an input with the features [B, heads, T, size] of its keys.
  void fill(const AttentionInput& in, const Tensor& f);

  Tensor& features;
};

// x [B, ...] -> sequence b [1, ...], off the tape.
inline Tensor one_sequence(const Tensor& x, int64_t b) { return x.detach().slice(0, b, 1); }

// A decoding step of such a method, whose tokens `state` has already: one sequence after another,
// since their numbers of keys differ. choose(b, one) -> the mask of sequence b, where one has
// its query and all rows of its cached keys and values, [1, ...]. -> [B, 1, H d].
Tensor attend_cached(const AttentionInput& in, const KeyValueState& state,
                     const std::function<FlatCsr(int64_t b, const AttentionInput& one)>& choose);

// P V [B, H, T, d] on the mask: over its entries, or with in.options.dense_path through T x T maps,
// the reference. `probabilities`, when given, receives P of the entries or [B, H, T, T].
Tensor masked_attention(const AttentionInput& in, const FlatCsr& mask,
                        Tensor* probabilities = nullptr);

// Attention on the mask, softmax renormalised over its entries -> [B, T, H d]. An observer gets the
// mask and the probabilities.
Tensor attend_on(const AttentionInput& in, const FlatCsr& mask);

}  // namespace brine::nn
