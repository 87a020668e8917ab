// Small masks of blocks for tests: their settings and inputs.
#pragma once

#include <vector>

#include "autograd/ops.h"
#include "autograd/ops_blocks.h"
#include "tests/gradcheck.h"

namespace brine::test {

struct BlockCase {
  int64_t B = 1, H = 2, G = 2, T = 30, d = 6;
  BlockConfig config = {.block = 4, .chosen = 2, .tile = 2, .candidates = 4};
  std::vector<int64_t> lengths = {};

  Visibility visible() const { return {.causal = true, .lengths = lengths_of(lengths)}; }
  int64_t length(int64_t b) const { return lengths.empty() ? T : lengths[size_t(b)]; }
  int levels() const { return config.level((T - 1) / config.block) + 1; }
};

// What blocks are chosen by: q [B, H, T, d], k [B, G, T, d] and a scale of the channels.
inline BlockScores block_scores(const BlockCase& c, const Tensor& q, const Tensor& k,
                                uint64_t seed = 7) {
  BlockScores s{.q = q, .groups = c.G};
  s.key_scale = uniform({c.G, c.d}, seed, 0.5, 2).to(q.dtype()).to(q.device());
  s.keys = key_codes(k, s.key_scale, c.config, c.levels());
  return s;
}

inline std::vector<BlockCase> block_cases() {
  const BlockConfig wide{
      .block = 8, .chosen = 1, .sinks = 0, .local = 0, .tile = 8, .candidates = 2};
  const BlockConfig levels{.block = 2, .chosen = 2, .tile = 2, .candidates = 3, .columns = 5};
  const BlockConfig large{.block = 32, .chosen = 3, .tile = 32, .candidates = 5};
  const BlockConfig odd{.block = 12, .chosen = 2, .tile = 4, .candidates = 3};
  const BlockConfig all{.block = 4, .chosen = 5, .sinks = 2, .local = 2, .tile = 4};
  const BlockConfig window{.block = 4, .chosen = 0, .sinks = 1, .local = 3, .tile = 4};
  return {
      {},
      {.B = 2, .H = 6, .G = 2, .T = 37, .lengths = {37, 22}},
      {.H = 7, .G = 1, .T = 41, .d = 16, .config = wide},
      {.H = 3, .G = 1, .T = 90, .config = levels},
      {.B = 2, .H = 6, .G = 2, .T = 61, .d = 5, .config = levels, .lengths = {61, 43}},
      {.H = 9, .G = 3, .T = 330, .d = 64, .config = large},
      {.B = 2, .H = 4, .G = 2, .T = 85, .d = 80, .config = odd, .lengths = {85, 44}},
      {.H = 4, .G = 4, .T = 70, .config = all},
      {.B = 2, .H = 4, .G = 2, .T = 50, .config = window, .lengths = {50, 21}},
      {.H = 4, .G = 2, .T = 33, .config = {.block = 4, .chosen = 3, .tile = 1, .candidates = 3}}};
}

}  // namespace brine::test
