// Small masks of blocks for tests: their settings, inputs and the choice by its definition.
#pragma once

#include <algorithm>
#include <set>
#include <vector>

#include "autograd/ops.h"
#include "autograd/ops_blocks.h"
#include "autograd/ops_units.h"
#include "tests/gradcheck.h"

namespace brine::test {

struct BlockCase {
  int64_t B = 1, H = 2, G = 2, T = 30, d = 6;
  BlockConfig config = {.block = 4, .chosen = 2, .tile = 2};
  std::vector<int64_t> lengths = {};
  bool learned = false;

  Visibility visible() const {
    return {.causal = true, .lengths = lengths.empty() ? Tensor() : Tensor::from(lengths, {B})};
  }
  Tensor all_lengths() const {
    return lengths.empty() ? Tensor::full({B}, double(T), Dtype::i64) : Tensor::from(lengths, {B});
  }
};

inline std::vector<Tensor> level_sums(const Tensor& x, const BlockCase& c) {
  std::vector<Tensor> sums;
  for (int z = 0; z <= c.config.level((c.T - 1) / c.config.block); ++z) {
    const int64_t keys = c.config.block << z;
    sums.push_back(sum_units(x, c.all_lengths(), Tensor::full({c.B}, double(keys), Dtype::i64),
                             c.T / keys, x.dtype()));
  }
  return sums;
}

inline std::vector<KeyParts> level_parts(const Tensor& k, const BlockCase& c) {
  return block_parts_by_level(k, c.config, c.config.level((c.T - 1) / c.config.block) + 1);
}

// Scores of random queries and keys; `k` [B, G, T, d].
inline BlockScores block_scores(const BlockCase& c, const Tensor& q, const Tensor& k,
                                uint64_t seed = 7) {
  BlockScores s{.q = q, .gain = uniform({c.H}, seed, 0.5, 2).to(q.dtype())};
  s.key_parts = level_parts(k, c);
  if (!c.learned) return s;
  s.psi_q = uniform({c.B, c.H, c.T, 5}, seed + 1, 0.1, 2).to(q.dtype());
  s.psi_k = uniform({c.B, c.G, c.T, 5}, seed + 2, 0.1, 2).to(q.dtype());
  s.prior_gain = uniform({c.H}, seed + 3, 0.5, 2).to(q.dtype());
  s.psi_sums = level_sums(s.psi_k, c);
  s.least_share = 1e-7;
  return s;
}

inline std::vector<BlockCase> block_cases() {
  const BlockConfig wide{.block = 8, .chosen = 1, .sinks = 0, .local = 0, .tile = 8};
  const BlockConfig levels{.block = 2, .chosen = 2, .tile = 2, .columns = 3, .opinion = 0.4};
  const BlockConfig parts{.block = 8, .parts = 4, .chosen = 2, .tile = 4, .opinion = 0.4};
  const BlockConfig part_levels{.block = 4, .parts = 2, .chosen = 2, .tile = 2, .columns = 3};
  // Not a power of two, nor a divisor of the block.
  const BlockConfig thirds{.block = 8, .parts = 3, .chosen = 2, .tile = 4, .columns = 4};
  return {
      {},
      {.B = 2, .H = 4, .G = 2, .T = 85, .config = thirds, .lengths = {85, 44}, .learned = true},
      {.B = 2, .H = 6, .G = 2, .T = 37, .lengths = {37, 22}},
      {.H = 7, .G = 1, .T = 41, .d = 16, .config = wide},
      {.H = 3, .G = 1, .T = 50, .config = levels, .learned = true},
      {.H = 4, .G = 2, .T = 61, .config = parts},
      {.B = 2,
       .H = 3,
       .G = 1,
       .T = 53,
       .config = part_levels,
       .lengths = {53, 18},
       .learned = true},
      {.H = 4, .G = 2, .T = 33, .config = {.block = 4, .chosen = 3, .tile = 1}, .learned = true}};
}

}  // namespace brine::test
