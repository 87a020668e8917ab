// LSH attention: the queries, scaled to length 1, are the keys too (the keys of the layer are not
// used), and a token attends to the tokens close to it in the order of hash buckets, in several
// rounds (Kitaev et al. 2020, "Reformer: The Efficient Transformer"). The results of the rounds,
// combined by their logsumexp with every pair counted once, are the softmax over the keys of all
// rounds, so they are computed as that. Time O(T log T) and memory O(T) for given rounds and
// chunks.
#include "nn/attention/rivals/hashed_keys.h"

namespace brine::nn {
namespace {

class Reformer : public Attention {
 public:
  Reformer(Init&, const AttentionShape&, const HashingConfig& config) : config_(config) {}

  AttentionTraits traits() const override { return {.sparse = true, .groups = true}; }

  Tensor forward(const AttentionInput& in) override { return hashed_attention(in, config_); }

 private:
  HashingConfig config_;
};
const RegisterAttention<Reformer, HashingConfig> registration("reformer");

}  // namespace
}  // namespace brine::nn
