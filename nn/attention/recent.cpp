// Attention to the most recent keys, in blocks of which the first ones may be kept, too (attention
// sinks: Xiao et al. 2023): the window that a choice of blocks must exceed, by the same kernel
// without a choice. For an encoder: to the k nearest keys. Linear in T.
#include <algorithm>
#include <numeric>

#include "autograd/ops.h"
#include "autograd/ops_blocks.h"
#include "nn/attention/block_lists.h"
#include "nn/attention/chosen_keys.h"
#include "tensor/functions/key_lists.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

struct RecentConfig {
  int64_t k = 576, sinks = 0, block = 32;

  void describe(data::Schema& s) {
    s.field("k", k,
            "Most recent keys, in whole blocks, with those of sinks (encoder: nearest keys)",
            {.min = 1});
    s.field("sinks", sinks, "First blocks that every row keeps", {.min = 0});
    s.field("block", block, "Keys of a block", {.min = 1});
  }
  // The window of k keys.
  BlockConfig blocks(int64_t keys) const {
    BlockConfig c{
        .block = block, .chosen = 0, .sinks = sinks, .tile = std::gcd(block, int64_t(32))};
    c.local = keys / block + (keys % block != 0) - sinks - 1;
    check(c.local >= 0, "recent: k = ", keys, " leaves no block but the ", sinks,
          " sinks; it must be at least ", (sinks + 1) * block);
    return c;
  }
};

// The k nearest visible keys of every row of an encoder, the same for all heads.
FlatCsr nearest_keys(const AttentionInput& in, int64_t k) {
  const int64_t T = in.q.dim(2);
  const RowWidths widths(in.visible, T);
  const KeyListShape shape{
      .batch = in.q.dim(0), .heads = in.q.dim(1), .rows = T, .keys = T, .lists = HeadLists::equal};
  return key_lists(shape, in.q.device(),
                   [&](int64_t b, int64_t, int64_t t, std::vector<int32_t>& keys) {
                     const int64_t w = widths(b, t), n = std::min(k, w);
                     const int64_t first = std::clamp<int64_t>(t - n / 2, 0, w - n);
                     for (int64_t j = first; j < first + n; ++j) keys.push_back(int32_t(j));
                   });
}

class Recent : public CachedAttention {
 public:
  Recent(Init&, const AttentionShape& shape, const RecentConfig& config)
      : CachedAttention(shape), config_(config) {
    if (shape.causal) config_.blocks(config_.k);
    check(shape.causal || config.sinks == 0,
          "recent: an encoder keeps its nearest keys alone; leave out sinks");
  }

  AttentionTraits traits() const override {
    return {.sparse = true,
            .incremental = shape_.causal,
            .groups = true,
            .k_step = shape_.causal ? config_.block : 1,
            .codes = shape_.causal,
            .part_step = shape_.causal ? config_.block : 0};
  }

  std::unique_ptr<AttentionState> make_state(const StateRequest& r) const override {
    return std::make_unique<KeyValueState>(r, shape_, config_.block);
  }

  Tensor step(const AttentionInput& in, AttentionState& any) const override {
    NoGrad off;
    auto& state = dynamic_cast<KeyValueState&>(any);
    state.append(in.k, in.v);
    const BlockConfig config = blocks(in.options);
    const BlockMask mask = empty_block_mask(config, in.q.dim(0), shape_.groups(), 1,
                                            state.capacity() / config.block + 1, in.q.device());
    const BlockScores none{.q = in.q.detach().contiguous(), .groups = shape_.groups()};
    select_blocks_step(mask, none, config, state.lengths());
    return state.attend(in.q, &mask);
  }

  Tensor forward(const AttentionInput& in) override {
    CostScope part("attention");
    if (!shape_.causal) return nearest(in);
    const BlockConfig config = blocks(in.options);
    if (continues(in)) return attend_window(in, config);
    fill(in);
    const BlockMask mask = select_blocks({.q = in.q.detach(), .groups = shape_.groups()}, config,
                                         in.visible, in.q.dim(2));
    const Tensor out = attend_blocks(in, in.q, mask, config);
    if (in.tap) show_blocks(in, mask, !in.tap->requested("kept_keys"));
    return merge_heads(out);
  }

 private:
  BlockConfig blocks(const RuntimeOptions& options) const {
    const int64_t limit =
        (shape_.max_positions / config_.block + config_.sinks + 1) * config_.block;
    return config_.blocks(std::min(options.kept(config_.k), limit));
  }

  Tensor nearest(const AttentionInput& in) const {
    const FlatCsr csr = nearest_keys(in, in.options.kept(config_.k));
    show_mask(in, csr);
    return merge_heads(masked_attention(in, csr));
  }

  RecentConfig config_;
};
const RegisterAttention<Recent, RecentConfig> registration("recent");

}  // namespace
}  // namespace brine::nn
