// Attention of each query to the k keys with the largest q . k, softmax over these: the best mask
// of k keys that a selection could find. Exact, so the time is quadratic in T; the memory is not.
#include <optional>

#include "nn/attention/chosen_keys.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

struct TopConfig {
  int64_t k = 64;

  void describe(data::Schema& s) {
    s.field("k", k, "Keys with the largest scores that a query sees", {.min = 1});
  }
};

class Top : public CachedAttention {
 public:
  Top(Init&, const AttentionShape& shape, const TopConfig& config)
      : CachedAttention(shape), k_(config.k) {}

  Tensor forward(const AttentionInput& in) override {
    fill(in);
    std::optional<CostScope> part(std::in_place, "mask");
    const FlatCsr mask = largest_keys(in.q, in.k, in.options.kept(k_), in.visible);
    part.reset();
    return attend_on(in, mask);
  }

  Tensor step(const AttentionInput& in, AttentionState& state) const override {
    NoGrad off;
    auto& cache = dynamic_cast<KeyValueState&>(state);
    cache.append(in.k, in.v);
    return attend_cached(in, cache, [&](int64_t b, const AttentionInput& one) {
      return largest_cached_keys(one.q, one.k, in.options.kept(k_), cache.length(b));
    });
  }

 private:
  int64_t k_;
};
const RegisterAttention<Top, TopConfig> registration("top");

}  // namespace
}  // namespace brine::nn
