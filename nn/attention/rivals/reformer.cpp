// LSH attention: the queries, scaled to length 1, are the keys too (the keys of the layer are not
// used), and a token attends to the tokens close to it in the order of hash buckets, in several
// rounds (Kitaev et al. 2020, "Reformer: The Efficient Transformer"). The results of the rounds,
// combined by their logsumexp with every pair counted once, are the softmax over the keys of all
// rounds, so they are computed as that. Time O(T log T) and memory O(T) for given rounds and
// chunks.
#include "nn/attention/rivals/hashed_keys.h"

namespace brine::nn {
namespace {

struct ReformerConfig : HashingConfig {
  int64_t redraw_interval = 0;

  void describe(data::Schema& s) {
    HashingConfig::describe(s);
    s.field("redraw_interval", redraw_interval,
            "Optimizer steps after which training draws other rotations; 0 = never", {.min = 0});
  }
};

class Reformer : public Attention {
 public:
  Reformer(Init&, const AttentionShape&, const ReformerConfig& config) : config_(config) {}

  AttentionTraits traits() const override { return {.sparse = true, .groups = true}; }

  void on_step(int64_t steps_done) override {
    if (config_.redraw_interval > 0) draw_ = uint64_t(steps_done / config_.redraw_interval);
  }

  Tensor forward(const AttentionInput& in) override {
    return hashed_attention(in, config_, in.random ? draw_ : 0);
  }

 private:
  ReformerConfig config_;
  uint64_t draw_ = 0;  // of the rotations in training
};
const RegisterAttention<Reformer, ReformerConfig> registration("reformer");

}  // namespace
}  // namespace brine::nn
