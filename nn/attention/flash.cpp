// Exact tiled softmax attention: the numbers of dense.cpp without its T x T maps.
#include "nn/attention/cached.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

class Flash : public CachedAttention {
 public:
  Flash(Init&, const AttentionShape& shape, const NoSettings&) : CachedAttention(shape) {}

  AttentionTraits traits() const override { return {.incremental = shape_.causal, .groups = true}; }

  Tensor forward(const AttentionInput& in) override {
    fill(in);
    CostScope part("attention");
    return flash_attention(in.q, in.k, in.v, in.visible);
  }
};
const RegisterAttention<Flash, NoSettings> registration("flash");

}  // namespace
}  // namespace brine::nn
