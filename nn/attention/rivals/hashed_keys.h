// Masks by locality-sensitive hashing: queries that are also keys fall into buckets by random
// rotations, and a token sees the tokens close to it in the order of the buckets.
#pragma once

#include "nn/attention/attention.h"
#include "tensor/mask/csr.h"

namespace brine::nn {

struct Hashing {
  int64_t chunk = 64;  // tokens of a chunk, and mean tokens of a bucket
  int64_t rounds = 8;  // of hashing; a row's keys are those of all rounds
  uint64_t seed = 0;   // of the rotations
};

// The settings of methods with such a mask.
struct HashingConfig {
  int64_t k = 64, rounds = 8, seed = 0;

  void describe(data::Schema& s);
};

// The keys of each row of q [B, H, T, d]. An encoder sorts the tokens of a sequence by bucket and
// cuts them into chunks; a row sees the chunk that contains it and the one before. In a decoder the
// chunks of each bucket are counted separately, since the borders of common chunks would depend on
// later tokens, and a row sees the earlier tokens of these two chunks. A row sees itself only if it
// sees no other token. Time O(T log T), memory O(T): of a row's keys at most 2 chunks a
// round. On the meta device the lists are those of random queries.
FlatCsr hashed_keys(const Tensor& q, const Hashing& hashing, const Visibility& visible);

// Attention on the mask, where the queries, scaled to length 1, are the keys, too: [B, T, H d].
Tensor hashed_attention(const AttentionInput& in, const HashingConfig& config);

}  // namespace brine::nn
