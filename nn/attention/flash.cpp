// Exact softmax attention by tiles: the numbers of dense.cpp without its T x T maps.
#include "nn/attention/cached.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

class Flash : public CachedAttention {
 public:
  Flash(Init&, const AttentionShape& shape, const NoSettings&) : CachedAttention(shape) {}

  AttentionTraits traits() const override { return {.incremental = shape_.causal}; }

  bool add_cost(CostTable& costs, int64_t tokens, const AttentionDials&) const override {
    const double T = double(tokens), H = double(shape_.heads), d = double(shape_.head_size);
    const double pairs = shape_.causal ? T * (T + 1) / 2 : T * T;  // of a query and a key it sees
    costs.op("attention", 2 * H * pairs * d, {H * T * d, H * T * d, H * T * d, H * T * d});
    return true;
  }

  Tensor forward(const AttentionInput& in) override {
    fill(in);
    CostScope part("attention");
    return flash_attention(in.q, in.k, in.v, in.visible);
  }
};
const RegisterAttention<Flash, NoSettings> registration("flash");

}  // namespace
}  // namespace brine::nn
