// Exact tiled softmax attention: the numbers of dense.cpp without its T x T maps.
#include "autograd/ops_blocks.h"
#include "nn/attention/block_lists.h"
#include "nn/attention/cached.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

class Flash : public CachedAttention {
 public:
  Flash(Init&, const AttentionShape& shape, const NoSettings&) : CachedAttention(shape) {}

  AttentionTraits traits() const override {
    return {.incremental = shape_.causal,
            .groups = true,
            .codes = shape_.causal,
            .part_step = shape_.causal ? BlockConfig().block : 0};
  }

  Tensor forward(const AttentionInput& in) override {
    CostScope part("attention");
    if (continues(in)) return go_on(in);
    fill(in);
    return flash_attention(in.q, in.k, in.v, in.visible);
  }

 private:
  // The bits of the whole prompt: attention over block lists that keep every block.
  Tensor go_on(const AttentionInput& in) const {
    BlockConfig all{.chosen = 0};
    const PromptPart part(in, all);
    all.local = part.tokens / all.block;
    dynamic_cast<KeyValueState&>(*in.state).extend(in.slot, in.k, in.v);
    return part.attend(select_blocks({.q = in.q, .groups = shape_.groups()}, all, part.visible,
                                     part.tokens, part.tiles),
                       all);
  }
};
const RegisterAttention<Flash, NoSettings> registration("flash");

}  // namespace
}  // namespace brine::nn
