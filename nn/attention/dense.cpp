// Dense softmax attention: softmax(q k^T / sqrt(d)) v with its T x T map, for inspection and as the
// reference of flash.cpp.
#include <cmath>

#include "nn/attention/cached.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

class Dense : public CachedAttention {
 public:
  Dense(Init&, const AttentionShape& shape, const NoSettings&) : CachedAttention(shape) {}

  AttentionTraits traits() const override {
    return {.quadratic = true, .incremental = shape_.causal, .groups = true};
  }

  Tensor forward(const AttentionInput& in) override {
    fill(in);
    CostScope part("attention");
    Tensor scores = group_matmul(in.q, in.k, true);  // [B, H, T, T]
    Tensor probs = softmax(scores, 1 / std::sqrt(double(in.q.dim(-1))), in.visible);
    if (in.tap) in.tap->put("probabilities", probs);
    return merge_heads(group_matmul(probs, in.v, false));
  }
};
const RegisterAttention<Dense, NoSettings> registration("dense");

}  // namespace
}  // namespace brine::nn
