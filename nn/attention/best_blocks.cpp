// Attention to the blocks of keys with the largest true attention mass, chosen and shared by the
// rules of attention blocks (docs/method.md section 8): the best mask that an estimate of the
// blocks' masses could give. The masses are exact, so the time is quadratic in T (about twice that
// of exact attention on a CPU, with blocks of 32), the memory is not.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "autograd/ops.h"
#include "autograd/ops_blocks.h"
#include "nn/attention/block_lists.h"
#include "tensor/functions/top_logits.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

struct BestBlocksConfig {
  int64_t k = 576;
  BlockConfig blocks = {};  // as attention blocks

  void describe(data::Schema& s) {
    s.field("k", k, "Keys selected for a row, in whole blocks, with the fixed blocks", {.min = 1});
    s.field("block", blocks.block, "Keys of a block", {.min = 1});
    s.field("tile", blocks.tile, "Rows that share the blocks they choose with later ones",
            {.min = 1, .max = kMaxTileRows});
    s.field("sinks", blocks.sinks, "First blocks that every row keeps", {.min = 0});
    s.field("local", blocks.local, "Blocks before a row's current one that it keeps", {.min = 0});
  }
};

class BestBlocks : public Attention {
 public:
  BestBlocks(Init&, const AttentionShape& shape, const BestBlocksConfig& config) : config_(config) {
    check(shape.causal, "best-blocks: blocks are for causal models");
    check_blocks("best-blocks", config.blocks);
  }

  AttentionTraits traits() const override {
    return {.sparse = true, .groups = true, .k_step = config_.blocks.block};
  }

  Tensor forward(const AttentionInput& in) override {
    const int64_t T = in.q.dim(2);
    const int64_t k = in.options.kept(config_.k);
    BlockConfig blocks = config_.blocks.keeping(std::min(k, T + config_.blocks.block));
    blocks.candidates = blocks.chosen;
    blocks.columns = std::max<int64_t>(1, T);  // one level: the mass of every block
    std::optional<CostScope> part(std::in_place, "mask");
    const BlockMask mask = choose(in, blocks);
    part.emplace("sparse attention");
    const Tensor out = attend_blocks(in, in.q, mask, blocks);
    if (in.tap) show_blocks(in, mask, !in.tap->requested("kept_keys"));
    return merge_heads(out);
  }

 private:
  // The shares of rows [first, first + count), those of one block, of the blocks before it.
  static Tensor shares_of(const AttentionInput& in, const BlockConfig& config, int64_t first,
                          int64_t count) {
    const int64_t block = config.block;
    const Tensor q = in.q.detach().slice(2, first, count) * (1 / std::sqrt(double(in.q.dim(3))));
    const int64_t B = q.dim(0), H = q.dim(1), blocks = first / block, rows = B * H * count;
    const int64_t later = (in.q.dim(2) - 1) / block - blocks;
    if (config.chosen == 0 || config.free_blocks(blocks) <= config.chosen) {
      return Tensor::zeros({B, H, count, blocks + later}, q.dtype(), q.device());  // no choice
    }
    auto scores = [&](int64_t from, int64_t n) {
      return group_matmul(q, in.k.detach().slice(2, from, n).contiguous(), true);
    };
    const Tensor row = arange(count, q.dtype(), q.device());
    const Tensor own = where(less_equal(row, row.view({count, 1})), scores(first, count),
                             -std::numeric_limits<double>::infinity());
    const Tensor each = log_sum_exp(scores(0, first).view({rows, blocks, block})),
                 last = log_sum_exp(own.view({rows, count}));
    const Tensor all = concat({each.view({rows, blocks}), last.view({rows, 1})}, 1);
    const Tensor shares = exp(each.view({rows, blocks}) - log_sum_exp(all).view({rows, 1}));
    return concat({shares.view({B, H, count, blocks}),
                   Tensor::zeros({B, H, count, later}, q.dtype(), q.device())},
                  3);
  }

  // The rows of a block at a time, which have a share of every block.
  static BlockMask choose(const AttentionInput& in, const BlockConfig& blocks) {
    NoGrad off;
    const Tensor& q = in.q;
    const int64_t T = q.dim(2), R = blocks.tile, tiles = (T + R - 1) / R, each = blocks.block / R;
    BlockMask all = empty_block_mask(blocks, q.dim(0), in.k.dim(1), tiles,
                                     (T - 1) / blocks.block + 1, q.device());
    for (int64_t first = 0; first < tiles; first += each) {
      const int64_t count = std::min(each, tiles - first);
      std::vector<int32_t> numbers(static_cast<size_t>(count));
      std::iota(numbers.begin(), numbers.end(), int32_t(first));
      const BlockScores shares{
          .shares = shares_of(in, blocks, first * R, std::min(count * R, T - first * R)),
          .groups = in.k.dim(1)};
      const BlockMask chosen =
          select_blocks(shares, blocks, in.visible, T, Tensor::from(numbers, {count}));
      copy_into(all.counts.slice(2, first, count), chosen.counts);
      copy_into(all.entries.slice(2, first, count), chosen.entries);
    }
    return all;
  }

  BestBlocksConfig config_;
};
const RegisterAttention<BestBlocks, BestBlocksConfig> registration("best-blocks");

}  // namespace
}  // namespace brine::nn
