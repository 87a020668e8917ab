// LSH attention: the queries, scaled to length 1, are the keys too (the keys of the layer are not
// used), and a token attends to the tokens close to it in the order of hash buckets, in several
// rounds (Kitaev et al. 2020, "Reformer: The Efficient Transformer"). The results of the rounds,
// combined by their logsumexp with every pair counted once, are the softmax over the keys of all
// rounds, so they are computed as that. Time O(T log T) and memory O(T) for given rounds and
// chunks.
#include <optional>

#include "nn/attention/chosen_keys.h"
#include "nn/attention/rivals/hashed_keys.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

struct ReformerConfig {
  int64_t k = 64, rounds = 8, seed = 0, redraw_interval = 0;

  void describe(data::Schema& s) {
    s.field("k", k, "Tokens of a chunk; a row sees at most two chunks in each round", {.min = 1});
    s.field("rounds", rounds, "Rounds of hashing", {.min = 1});
    s.field("seed", seed, "Of the random rotations", {.min = 0});
    s.field("redraw_interval", redraw_interval,
            "Optimizer steps after which training draws other rotations; 0 = never", {.min = 0});
  }
};

class Reformer : public Attention {
 public:
  Reformer(Init&, const AttentionShape& shape, const ReformerConfig& config)
      : config_(config), shape_(shape) {}

  AttentionTraits traits() const override {
    return {.causal = shape_.causal,
            .bidirectional = !shape_.causal,
            .linear = true,
            .sparse = true,
            .groups = true};
  }

  void on_step(int64_t steps_done) override {
    if (config_.redraw_interval > 0) draw_ = uint64_t(steps_done / config_.redraw_interval);
  }

  Tensor forward(const AttentionInput& in) override {
    std::optional<CostScope> part(std::in_place, "mask");
    const FlatCsr mask = hashed_keys(in.q,
                                     {.chunk = in.options.k ? in.options.k : config_.k,
                                      .rounds = config_.rounds,
                                      .seed = uint64_t(config_.seed),
                                      .draw = in.random ? draw_ : 0},
                                     in.visible);
    part.reset();
    return attend_on(with_shared_keys(in), mask);
  }

 private:
  ReformerConfig config_;
  AttentionShape shape_;
  uint64_t draw_ = 0;  // of the rotations in training
};
const RegisterAttention<Reformer, ReformerConfig> registration("reformer");

}  // namespace
}  // namespace brine::nn
