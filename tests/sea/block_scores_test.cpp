// What the loss of the estimate reads of a mask of blocks: the scores by their definition.
#include <cmath>

#include "autograd/ops_blocks.h"
#include "nn/attention/observer.h"
#include "tests/nn/attention/contract/contract.h"

namespace brine::test {

TEST_CASE("blocks: shown scores are log sum exp over the parts with their numbers of keys") {
  const int64_t T = 61, kTile = 2, kBlock = 4, kColumns = 5;
  for (const int64_t parts : {1, 3}) {
    Block block = make_block("sea", true, Dtype::f64, 8, T,
                             {{"preset", "blocks"},
                              {"block", std::to_string(kBlock)},
                              {"parts", std::to_string(parts)},
                              {"tile", std::to_string(kTile)},
                              {"columns", std::to_string(kColumns)}});
    const Inputs in = inputs(2, T, Dtype::f64);
    Tensor gain;
    for (const auto& p : block.module->named_parameters()) {
      if (p.path == "prior.pooled_gain") gain = p.parameter->value;
    }
    nn::Tap tap("sea");
    tap.request("scores");
    block.module->forward({.q = in.q, .k = in.k, .v = in.v, .hidden = in.hidden, .tap = &tap});
    const BlockConfig config{.block = kBlock, .parts = parts, .tile = kTile, .columns = kColumns};
    const auto levels = block_parts_by_level(in.k, config, config.level((T - 1) / kBlock) + 1);
    REQUIRE(levels.size() == 3);
    int64_t rows = 0;
    for (size_t z = 0; z < levels.size(); ++z) {
      const Tensor scores = tap.get("block_scores_" + std::to_string(z)),
                   places = tap.get("block_rows_" + std::to_string(z));
      rows += places.numel();
      const int64_t N = scores.dim(3), all = levels[z].means.dim(2);
      for (int64_t i = 0; i < 2 * kHeads * places.numel(); ++i) {
        const int64_t bh = i / places.numel(), t = places.data<int64_t>()[i % places.numel()];
        for (int64_t b = 0; b < N; ++b) {
          double sum = 0;
          for (int64_t p = b * parts; p < (b + 1) * parts; ++p) {
            double dot = 0;
            for (int64_t c = 0; c < kSize; ++c) {
              dot += in.q.data<double>()[(bh * T + t) * kSize + c] *
                     levels[z].means.data<double>()[(bh * all + p) * kSize + c];
            }
            // One part has all keys: its number is the same for all blocks.
            const double log = parts == 1 ? 0 : levels[z].logs.data<double>()[bh * all + p];
            const double score = gain.data<double>()[bh % kHeads] * dot / std::sqrt(double(kSize));
            sum += std::exp(score + log);
          }
          const bool complete = b < t / kBlock >> z;
          CHECK(scores.data<double>()[i * N + b] ==
                doctest::Approx(complete ? std::log(sum) : -1e4));
        }
      }
    }
    CHECK(rows == T - kBlock);  // all that have a complete block
  }
}

}  // namespace brine::test
