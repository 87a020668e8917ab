// Exact tiled softmax attention: the numbers of dense.cpp without its T x T maps.
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
    if (continues(in)) {
      // The bits of the whole prompt: attention over block lists that keep every block.
      BlockConfig all{.chosen = 0};
      all.local = (in.state->length(in.slot) + in.q.dim(2)) / all.block;
      return attend_window(in, all);
    }
    fill(in);
    return flash_attention(in.q, in.k, in.v, in.visible);
  }
};
const RegisterAttention<Flash, NoSettings> registration("flash");

}  // namespace
}  // namespace brine::nn
