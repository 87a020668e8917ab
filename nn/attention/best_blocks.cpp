// Attention to the blocks of keys with the largest true attention mass, chosen and shared by the
// rules of attention blocks (docs/method.md section 8): the best mask that an estimate of the
// blocks' masses could give. The masses are exact, so the time is quadratic in T, the memory is
// not.
#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "autograd/ops.h"
#include "autograd/ops_blocks.h"
#include "nn/attention/block_lists.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

struct BestBlocksConfig {
  int64_t k = 576;
  BlockConfig blocks = {};  // as attention blocks

  void describe(data::Schema& s) {
    s.field("k", k, "Keys that a row keeps by itself, in whole blocks, fixed ones included",
            {.min = 1});
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
  // The mass of rows [first, first + count) in the blocks before the last one.
  static Tensor masses_of(const AttentionInput& in, int64_t block, int64_t first, int64_t count) {
    const Tensor q = in.q.detach().slice(2, first, count).contiguous();
    const int64_t B = q.dim(0), H = q.dim(1), T = in.q.dim(2), blocks = (T - 1) / block;
    if (blocks == 0) return Tensor::zeros({B, H, count, 1}, q.dtype(), q.device());
    const RowWidths widths(in.visible, T);
    std::vector<double> seen;
    for (int64_t i = 0; i < B * count; ++i)
      seen.push_back(double(widths(i / count, first + i % count)));
    const Tensor mask = less(arange(T, Dtype::f64), Tensor::from(seen, {B, 1, count, 1}));
    const Tensor map = masked_softmax(group_matmul(q, in.k.detach(), true),
                                      broadcast_to(mask.to(q.device()), {B, H, count, T}),
                                      1 / std::sqrt(double(q.dim(3))));
    return sum(slice(map, 3, 0, blocks * block).view({B, H, count, blocks, block}), {4});
  }

  // A few tiles at a time, whose rows have a mass for every block.
  static BlockMask choose(const AttentionInput& in, const BlockConfig& blocks) {
    NoGrad off;
    constexpr int64_t kRows = 64;
    const Tensor& q = in.q;
    const Tensor& k = in.k;
    const int64_t T = q.dim(2), R = blocks.tile, tiles = (T + R - 1) / R, each = kRows / R;
    BlockMask all =
        empty_block_mask(blocks, q.dim(0), k.dim(1), tiles, (T - 1) / blocks.block + 1, q.device());
    for (int64_t first = 0; first < tiles; first += each) {
      const int64_t count = std::min(each, tiles - first),
                    rows = std::min(count * R, T - first * R);
      std::vector<int32_t> numbers;
      for (int64_t i = first; i < first + count; ++i) numbers.push_back(int32_t(i));
      const Tensor tile_numbers = Tensor::from(numbers, {count});
      const BlockScores masses{.shares = masses_of(in, blocks.block, first * R, rows),
                               .groups = k.dim(1)};
      const BlockMask chosen = select_blocks(masses, blocks, in.visible, T, tile_numbers);
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
