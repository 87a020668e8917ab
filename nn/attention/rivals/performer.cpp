// The Performer: softmax attention as linear attention of positive random features of queries and
// keys, so that the sum over keys is computed once for all queries (Choromanski, Likhosherstov,
// Dohan and others 2021, Rethinking Attention with Performers). Linear in T.
#include <optional>

#include "nn/attention/rivals/linear_sums.h"
#include "nn/layers/random_features.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

enum class RandomFeatures : uint8_t { automatic, relu, softmax };
constexpr data::Named<RandomFeatures> kRandomFeatures[] = {{RandomFeatures::automatic, "auto"},
                                                           {RandomFeatures::relu, "relu"},
                                                           {RandomFeatures::softmax, "softmax"}};

struct PerformerConfig {
  RandomFeatures features = RandomFeatures::automatic;
  int64_t feature_count = 0;
  double feature_divisor = 1, feature_eps = 0;

  void describe(data::Schema& s) {
    s.choice("features", features, kRandomFeatures,
             "Random features; auto: relu for a causal model, softmax for an encoder");
    s.field("feature_count", feature_count, "Features m of a head; 0 = d ln d / feature_divisor",
            {.min = 0});
    s.field("feature_divisor", feature_divisor,
            "Features m = d ln d / feature_divisor, unless feature_count is given", {.above = 0});
    s.field("feature_eps", feature_eps, "Added to the features; 0 = 1e-3 (relu) or 1e-4 (softmax)",
            {.min = 0});
    s.fixed("redraw_interval", {"0"});  // of files of earlier versions
  }
};

class Performer : public Attention {
 public:
  Performer(Init& init, const AttentionShape& shape, const PerformerConfig& config)
      : config_(config),
        shape_(shape),
        softmax_(uses_softmax(shape, config)),
        random_(child<RandomProjection>("features", init, count(shape, config), shape.head_size)) {}

  AttentionTraits traits() const override { return {.incremental = shape_.causal, .groups = true}; }

  Tensor forward(const AttentionInput& in) override {
    std::optional<CostScope> part(std::in_place, "features");
    const Tensor phi_q = features(in.q, in.visible, FeatureSide::queries);
    const Tensor phi_k = features(in.k, in.visible, FeatureSide::keys);
    if (in.state) dynamic_cast<LinearSums&>(*in.state).fill(in.slot, phi_k, in.v, in.visible);
    part.emplace("attention");
    return merge_heads(linear_attention(phi_q, phi_k, {}, in.v, in.visible, key_eps()));
  }

  std::unique_ptr<AttentionState> make_state(const StateRequest& r) const override {
    return std::make_unique<LinearSums>(r, shape_, random_.projection.value.dim(0));
  }

  Tensor step(const AttentionInput& in, AttentionState& state) const override {
    NoGrad off;
    auto& sums = dynamic_cast<LinearSums&>(state);
    sums.advance();
    return merge_heads(sums.attend(relu_features_step(in.q, random_.projection, eps()),
                                   relu_features_step(in.k, random_.projection, eps()), in.v,
                                   key_eps()));
  }

 private:
  static bool uses_softmax(const AttentionShape& shape, const PerformerConfig& config) {
    check(!shape.causal || config.features != RandomFeatures::softmax,
          "performer: softmax features see future keys; a causal model takes features = relu");
    return !shape.causal && config.features != RandomFeatures::relu;
  }
  static int64_t count(const AttentionShape& shape, const PerformerConfig& config) {
    return config.feature_count ? config.feature_count
                                : feature_count(shape.head_size, config.feature_divisor);
  }

  double eps() const {
    return config_.feature_eps > 0 ? config_.feature_eps : (softmax_ ? 1e-4 : 1e-3);
  }
  // Added to every sum of key features; softmax features contain a stabiliser.
  double key_eps() const { return softmax_ ? 0 : 1e-6; }

  Tensor features(const Tensor& x, const Visibility& visible, FeatureSide side) const {
    if (softmax_) return softmax_features(x, random_.projection, eps(), visible.lengths, side);
    return relu_features(x, random_.projection, eps(), visible.lengths);
  }

  PerformerConfig config_;
  AttentionShape shape_;
  bool softmax_;
  RandomProjection& random_;
};
const RegisterAttention<Performer, PerformerConfig> registration("performer");

}  // namespace
}  // namespace brine::nn
