// The settings of blocks, and attention over whole sequences.
#include "sea/blocks/block_attention.h"

#include <optional>

#include "autograd/ops.h"
#include "nn/attention/block_lists.h"
#include "tensor/meter/cost_meter.h"

namespace brine::sea {

void BlocksConfig::describe(data::Schema& s) {
  s.field("k", k, "Keys selected for a row, in whole blocks, with the fixed blocks", {.min = 1});
  s.field("candidates", candidates, "Blocks of a row whose keys are scored", {.min = 1});
  s.field("sinks", sinks, "First blocks that every row keeps", {.min = 0});
  s.field("local", local, "Blocks before a row's current one that it keeps", {.min = 0});
  s.field("block", block, "Keys of a block", {.min = 1});
  s.field("tile", tile, "Rows that share the blocks they choose with later ones; divides block",
          {.min = 1, .max = kMaxTileRows});
  s.field("columns", columns, "Blocks that the first pass scores at once; more: by super-blocks",
          {.min = 1});
}

BlockConfig BlocksConfig::blocks(int64_t other) const {
  const BlockConfig c{.block = block,
                      .chosen = 0,
                      .sinks = sinks,
                      .local = local,
                      .tile = tile,
                      .candidates = candidates,
                      .columns = columns};
  return c.keeping(other ? other : k);
}

void BlocksConfig::validate(const nn::AttentionShape& shape) const {
  check(shape.causal,
        "blocks: an encoder sees later keys, blocks are for causal models; use attention = sea");
  check(k >= 1 && block >= 1 && tile >= 1, "blocks: k, block and tile are at least 1, not ", k,
        ", ", block, " and ", tile);
  const int64_t max_k = std::max(kDefaultK, (shape.max_positions + block - 1) / block * block);
  check(k <= max_k, "blocks: k = ", k, ", the model has ", shape.max_positions,
        " positions; it must be at most ", max_k);
  check_blocks("blocks", blocks());
}

BlockAttention::BlockAttention(nn::Init& init, const nn::AttentionShape& shape,
                               const BlocksConfig& config)
    : config_((config.validate(shape), config)),
      shape_(shape),
      key_scale_(buffer("key_scale", init.full({shape.groups(), shape.head_size}, 1))) {}

nn::AttentionTraits BlockAttention::traits() const {
  return {.sparse = true,
          .incremental = true,
          .groups = true,
          .calibrates = true,
          .k_step = config_.block,
          .codes = true,
          .part_step = config_.block,
          .reads_hidden = false,
          .reads_content = false};
}

BlockConfig BlockAttention::blocks_of(const nn::RuntimeOptions& options) const {
  if (!options.k) return config_.blocks();
  BlocksConfig other = config_;
  other.k = options.k;
  other.candidates = std::max(other.candidates, config_.blocks(options.k).chosen);
  other.validate(shape_);
  return other.blocks();
}

void BlockAttention::calibrate(const Tensor& keys, const Visibility& visible) {
  const Tensor scale = calibrated_key_scale(keys, visible.lengths, config_.block);
  copy_into(key_scale_.value, scale.to(key_scale_.value.dtype()).to(key_scale_.value.device()));
}

Tensor BlockAttention::forward(const nn::AttentionInput& input) {
  nn::AttentionInput in = input;
  if (!grad_enabled()) {  // one copy of views for the choice and for attention
    for (Tensor* x : {&in.q, &in.k, &in.v}) *x = x->detach().contiguous();
  }
  const int64_t T = in.q.dim(2);
  const BlockConfig config = blocks_of(in.options);
  if (nn::continues(in)) return go_on(in, config);
  check(!(in.tap && in.tap->forced("selected").defined()), "blocks: no columns can be forced");
  std::optional<CostScope> part(std::in_place, "mask");
  BlockScores scores{.q = in.q.detach(), .key_scale = key_scale_.value, .groups = shape_.groups()};
  if (config.chosen > 0) {
    const int levels = config.level(std::max<int64_t>(T - 1, 0) / config.block) + 1;
    scores.keys = key_codes(in.k, key_scale_, config, levels);
  }
  const BlockMask mask = select_blocks(scores, config, in.visible, T);
  if (in.state) {
    dynamic_cast<BlockState&>(*in.state).fill(in.slot, in.k, in.v, std::move(scores.keys),
                                              in.visible, mask);
  }
  part.emplace("sparse attention");
  const Tensor attended = nn::attend_blocks(in, in.q, mask, config);
  if (in.tap) {
    // A mask by keys is larger than anything else here: those who ask for the counts alone do not
    // get it.
    nn::show_blocks(in, mask, in.tap->requested("mask") || !in.tap->requested("kept_keys"));
  }
  return merge_heads(attended);
}

Tensor BlockAttention::go_on(const nn::AttentionInput& in, const BlockConfig& config) const {
  std::optional<CostScope> cost(std::in_place, "mask");
  auto& state = dynamic_cast<BlockState&>(*in.state);
  const nn::PromptPart part(in, config);
  state.extend(in.slot, in.k, in.v);
  const BlockScores scores{.q = in.q,
                           .key_scale = key_scale_.value,
                           .keys = state.copies(in.slot, in.q.dtype()),
                           .groups = shape_.groups()};
  const BlockMask mask = select_blocks(scores, config, part.visible, part.tokens, part.tiles);
  state.keep_last(in.slot, mask, mask.tile_count() - 1, 0);
  cost.emplace("sparse attention");
  return part.attend(mask, config);
}

std::unique_ptr<nn::AttentionState> BlockAttention::make_state(
    const nn::StateRequest& request) const {
  return std::make_unique<BlockState>(*this, request);
}

Tensor BlockAttention::step(const nn::AttentionInput& in, nn::AttentionState& any) const {
  NoGrad off;
  auto& state = dynamic_cast<BlockState&>(any);
  state.append(in.k, in.v);
  const BlockScores scores{.q = in.q.detach().contiguous(),
                           .key_scale = key_scale_.value,
                           .keys = state.copies(),
                           .groups = shape_.groups()};
  const BlockMask mask = state.mask();
  select_blocks_step(mask, scores, blocks_of(in.options), state.lengths());
  return state.attend(in.q, &mask);
}

namespace {
const nn::RegisterAttention<BlockAttention, BlocksConfig> registration("blocks");
}

}  // namespace brine::sea
