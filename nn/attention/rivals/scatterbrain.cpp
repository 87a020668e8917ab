// A sparse and a low-rank part: the sum of LSH attention, as in reformer.cpp, and of linear
// attention of random features (Chen et al. 2021, "Scatterbrain: Unifying Sparse and Low-rank
// Attention"). The paper subtracts the low-rank part where the sparse one has an entry, before one
// softmax denominator; this is the sum of two attentions, as SEA was compared with. O(T log T).
#include "autograd/ops.h"
#include "nn/attention/rivals/hashed_keys.h"
#include "nn/layers/random_features.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

struct ScatterbrainConfig : HashingConfig {
  double feature_divisor = 1, feature_eps = 0;

  void describe(data::Schema& s) {
    HashingConfig::describe(s);
    s.field("feature_divisor", feature_divisor, "Features m = d ln d / feature_divisor",
            {.above = 0});
    s.field("feature_eps", feature_eps,
            "Added to the features; 0 = 1e-3 (causal) or 1e-4 (encoder)", {.min = 0});
  }
};

class Scatterbrain : public Attention {
 public:
  Scatterbrain(Init& init, const AttentionShape& shape, const ScatterbrainConfig& config)
      : config_(config),
        shape_(shape),
        projection_(buffer(
            "features",
            random_projection(init, features(), shape.head_size, init.dtype).to(init.device))) {}

  AttentionTraits traits() const override { return {.sparse = true, .groups = true}; }

  Tensor forward(const AttentionInput& in) override {
    const Tensor sparse = hashed_attention(in, config_);
    CostScope part("low rank");
    return sparse + low_rank(in);
  }

 private:
  int64_t features() const { return feature_count(shape_.head_size, config_.feature_divisor); }

  // Softmax features of keys depend on the whole sequence, so a causal model takes ReLU features.
  Tensor low_rank(const AttentionInput& in) const {
    const Tensor R = projection_.value.to(in.q.device()), &lengths = in.visible.lengths;
    const double eps = config_.feature_eps > 0 ? config_.feature_eps : shape_.causal ? 1e-3 : 1e-4;
    if (shape_.causal) {
      return merge_heads(linear_attention(relu_features(in.q, R, eps, lengths),
                                          relu_features(in.k, R, eps, lengths), {}, in.v,
                                          in.visible));
    }
    return merge_heads(linear_attention(
        softmax_features(in.q, R, eps, lengths, FeatureSide::queries),
        softmax_features(in.k, R, eps, lengths, FeatureSide::keys), {}, in.v, in.visible, 0));
  }

  ScatterbrainConfig config_;
  AttentionShape shape_;
  Buffer& projection_;  // [m, d]
};
const RegisterAttention<Scatterbrain, ScatterbrainConfig> registration("scatterbrain");

}  // namespace
}  // namespace brine::nn
