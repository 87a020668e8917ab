// cosFormer: linear attention of ReLU features, whose weight falls with the distance of query and
// key as cos((i - j) pi / (2 M)), M = the model's positions (Qin, Sun, Deng and others 2022,
// cosFormer: Rethinking Softmax in Attention). The cosine of a difference is cos cos + sin sin, so
// twice as many features give it. Linear in T.
#include <cmath>
#include <numbers>
#include <optional>

#include "autograd/ops.h"
#include "nn/attention/attention.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

struct CosformerConfig {
  double feature_eps = 1e-6;

  void describe(data::Schema& s) {
    s.field("feature_eps", feature_eps,
            "Added to the features, so that a query without a positive feature has weights",
            {.above = 0});
  }
};

// cos and sin of the angle of every position, [T, 1].
struct Angles {
  Tensor cosine, sine;
};

Angles angles_of(int64_t T, const Tensor& like, int64_t positions) {
  auto values = [&](double (*function)(double)) {
    return Tensor::filled({T, 1}, like.dtype(), like.device(), [&](const Tensor& y) {
      dispatch_float(y.dtype(), [&]<class F>() {
        for (int64_t t = 0; t < T; ++t) {
          y.data<F>()[t] = F(function(std::numbers::pi / 2 * double(t) / double(positions)));
        }
      });
    });
  };
  return {values([](double x) { return std::cos(x); }),
          values([](double x) { return std::sin(x); })};
}

class Cosformer : public Attention {
 public:
  Cosformer(Init&, const AttentionShape& shape, const CosformerConfig& config)
      : config_(config), shape_(shape) {}

  AttentionTraits traits() const override { return {.groups = true}; }

  Tensor forward(const AttentionInput& in) override {
    const int64_t T = in.q.dim(2);
    check(T <= shape_.max_positions, "cosformer: ", T, " tokens, but the model has ",
          shape_.max_positions, " positions");
    std::optional<CostScope> part(std::in_place, "features");
    const Angles angles = angles_of(T, in.q, shape_.max_positions);
    const Tensor phi_q = features(in.q, angles), phi_k = features(in.k, angles);
    part.emplace("attention");
    return merge_heads(linear_attention(phi_q, phi_k, {}, in.v, in.visible, 0));
  }

 private:
  // [B, H, T, d] -> [B, H, T, 2 d]
  Tensor features(const Tensor& x, const Angles& angles) const {
    const Tensor positive = relu(x) + config_.feature_eps;
    return concat({positive * angles.cosine, positive * angles.sine}, 3);
  }

  CosformerConfig config_;
  AttentionShape shape_;
};
const RegisterAttention<Cosformer, CosformerConfig> registration("cosformer");

}  // namespace
}  // namespace brine::nn
