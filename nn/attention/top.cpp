// Attention to each query's own k keys with the largest q . k, softmax over these: the best mask of
// k keys that a selection could find. Exact, so the time is quadratic in T; the memory is not.
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

class Top : public Attention {
 public:
  Top(Init&, const AttentionShape& shape, const TopConfig& config) : shape_(shape), k_(config.k) {}

  AttentionTraits traits() const override {
    return {.sparse = true, .incremental = shape_.causal, .groups = true};
  }

  Tensor forward(const AttentionInput& in) override {
    if (in.state) {
      dynamic_cast<KeyValueState&>(*in.state).fill(in.slot, in.k, in.v, in.visible.lengths);
    }
    std::optional<CostScope> part(std::in_place, "mask");
    const FlatCsr mask = largest_keys(in.q, in.k, kept(in.options), in.visible);
    part.reset();
    return attend_on(in, mask);
  }

  std::unique_ptr<AttentionState> make_state(const StateRequest& r) const override {
    check(shape_.causal, "attention: an encoder is not decoded token by token");
    return std::make_unique<KeyValueState>(r.batch, r.capacity, shape_.groups(), shape_.head_size,
                                           r.cached(), r.device);
  }

  // Sequences one after another: each has its own number of keys.
  Tensor step(const AttentionInput& in, AttentionState& state) const override {
    NoGrad off;
    auto& cache = dynamic_cast<KeyValueState&>(state);
    cache.append(in.k, in.v);
    const int64_t B = in.q.dim(0);
    Tensor y = Tensor::empty({B, 1, in.q.dim(1) * in.q.dim(3)}, in.q.dtype(), in.q.device());
    for (int64_t b = 0; b < B; ++b) {
      auto own = [b](const Tensor& x) { return x.detach().slice(0, b, 1); };
      const FlatCsr mask =
          largest_cached_keys(own(in.q), own(cache.keys), kept(in.options), cache.length(b));
      copy_into(y.slice(0, b, 1), attend_on({.q = own(in.q),
                                             .k = own(cache.keys),
                                             .v = own(cache.values),
                                             .hidden = {},
                                             .tap = B == 1 ? in.tap : nullptr},
                                            mask));
    }
    return y;
  }

 private:
  int64_t kept(const RuntimeOptions& options) const { return options.k ? options.k : k_; }

  AttentionShape shape_;
  int64_t k_;
};
const RegisterAttention<Top, TopConfig> registration("top");

}  // namespace
}  // namespace brine::nn
