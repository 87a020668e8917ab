// cosFormer: linear attention of ReLU features, whose weight falls with the distance of query and
// key as cos((i - j) pi / (2 M)), M = the model's positions (Qin, Sun, Deng and others 2022,
// cosFormer: Rethinking Softmax in Attention). The cosine of a difference is cos cos + sin sin, so
// twice as many features give it. Linear in T.
#include <cmath>
#include <numbers>
#include <optional>

#include "nn/attention/rivals/linear_sums.h"
#include "nn/layers/layers.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

struct CosformerConfig {
  bool projections = false;
  double feature_eps = 1e-6;

  void describe(data::Schema& s) {
    s.field("projections", projections,
            "Further linear layers for q, k and v, over the heads of each");
    s.field("feature_eps", feature_eps,
            "Added to the features, so that a query without a positive feature has weights",
            {.above = 0});
  }
};

// cos and sin of a position's angle.
struct Angles {
  Tensor cosine, sine;  // [T, 1], or [B, 1, 1, 1] of one token of each sequence
};

// f(i) gives position i of the shape.
template <class F>
Angles angles_of(const Shape& shape, const Tensor& like, int64_t positions, F f) {
  auto values = [&](double (*function)(double)) {
    return Tensor::computed(shape, like.dtype(), like.device(), [&](int64_t i) {
      return function(std::numbers::pi / 2 * double(f(i)) / double(positions));
    });
  };
  return {values([](double x) { return std::cos(x); }),
          values([](double x) { return std::sin(x); })};
}

class Cosformer : public Attention {
 public:
  Cosformer(Init& init, const AttentionShape& shape, const CosformerConfig& config)
      : config_(config), shape_(shape) {
    if (!config.projections) return;
    const int64_t queries = shape.heads * shape.head_size, keys = shape.groups() * shape.head_size;
    query_ = &child<Linear>("query", init, queries, queries);
    key_ = &child<Linear>("key", init, keys, keys);
    value_ = &child<Linear>("value", init, keys, keys);
  }

  AttentionTraits traits() const override { return {.incremental = shape_.causal, .groups = true}; }

  Tensor forward(const AttentionInput& in) override {
    const int64_t T = in.q.dim(2);
    check(T <= shape_.max_positions, "cosformer: ", T, " tokens, but the model has ",
          shape_.max_positions, " positions");
    std::optional<CostScope> part(std::in_place, "features");
    const Angles angles =
        angles_of({T, 1}, in.q, shape_.max_positions, [](int64_t t) { return t; });
    const Tensor phi_q = features(projected(query_, in.q), angles);
    const Tensor phi_k = features(projected(key_, in.k), angles);
    const Tensor v = projected(value_, in.v);
    if (in.state) dynamic_cast<LinearSums&>(*in.state).fill(in.slot, phi_k, v, in.visible);
    part.emplace("attention");
    return merge_heads(linear_attention(phi_q, phi_k, {}, v, in.visible, 0));
  }

  std::unique_ptr<AttentionState> make_state(const StateRequest& r) const override {
    check(r.capacity <= shape_.max_positions, "cosformer: a capacity of ", r.capacity,
          " tokens, but the model has ", shape_.max_positions, " positions");
    return std::make_unique<LinearSums>(r, shape_, 2 * shape_.head_size);
  }

  Tensor step(const AttentionInput& in, AttentionState& state) const override {
    NoGrad off;
    auto& sums = dynamic_cast<LinearSums&>(state);
    sums.advance();
    const int64_t B = in.q.dim(0);
    const Angles angles = angles_of({B, 1, 1, 1}, in.q, shape_.max_positions,
                                    [&](int64_t b) { return sums.length(b) - 1; });
    return merge_heads(sums.attend(features(one_projected(query_, in.q), angles),
                                   features(one_projected(key_, in.k), angles),
                                   one_projected(value_, in.v), 0));
  }

 private:
  // [B, H, T, d] -> [B, H, T, 2 d]
  Tensor features(const Tensor& x, const Angles& angles) const {
    const Tensor positive = relu(x) + config_.feature_eps;
    return concat({positive * angles.cosine, positive * angles.sine}, 3);
  }

  static Tensor projected(const Linear* layer, const Tensor& x) {
    return layer ? split_heads((*layer)(merge_heads(x)), x.dim(1)) : x;
  }
  // The same for one token, whose bits do not depend on the other sequences.
  static Tensor one_projected(const Linear* layer, const Tensor& x) {
    if (!layer) return x;
    return split_heads(thin_linear(merge_heads(x), layer->weight, *layer->bias), x.dim(1));
  }

  CosformerConfig config_;
  AttentionShape shape_;
  Linear *query_ = nullptr, *key_ = nullptr, *value_ = nullptr;  // null without projections
};
const RegisterAttention<Cosformer, CosformerConfig> registration("cosformer");

}  // namespace
}  // namespace brine::nn
