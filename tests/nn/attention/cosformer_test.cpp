// cosFormer against its definition: ReLU products times the cosine of the distance.
#include <numbers>

#include "tests/nn/attention/definition.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

constexpr int64_t kCosformerPositions = 40;

std::vector<double> naive_cosformer(const AttentionCase& c, const Tensor& queries,
                                    const Tensor& keys, const Tensor& v, double eps) {
  const Array q(queries), k(keys);
  return attention_by(c, v, [&](int64_t b, int64_t h, int64_t t, int64_t j) {
    double w = 0;
    for (int64_t i = 0; i < c.d; ++i) {
      w += (std::max(q(b, h, t, i), 0.0) + eps) * (std::max(k(b, c.group(h), j, i), 0.0) + eps);
    }
    return w * std::cos(std::numbers::pi * double(t - j) / double(2 * kCosformerPositions));
  });
}

// x [B, H, T, d] through the layer `name` of the block, over the heads of a token.
Tensor through(nn::Attention& block, const std::string& name, const Tensor& x) {
  Tensor weight, bias;
  for (const auto& p : block.named_parameters()) {
    if (p.path == name + ".weight") weight = p.parameter->value;
    if (p.path == name + ".bias") bias = p.parameter->value;
  }
  REQUIRE(weight.defined());
  const Array in(x), w(weight);
  const int64_t H = x.dim(1), d = x.dim(3);
  auto sum = [&](const Coordinates& at) {
    const int64_t out = at[1] * d + at[3];
    double y = bias.to_vector()[size_t(out)];
    for (int64_t i = 0; i < H * d; ++i) y += w(out, i) * in(at[0], i / d, at[2], i % d);
    return y;
  };
  return Tensor::from(tabulate(in.shape, sum), x.shape());
}

}  // namespace

TEST_CASE("cosformer: ReLU products times the cosine of the distance") {
  for (const AttentionCase& c : attention_cases()) {
    INFO(c.name());
    for (const char* eps : {"1e-6", "0.1"}) {
      const auto block = c.make("cosformer", {{"feature_eps", eps}}, kCosformerPositions);
      CHECK(block->named_parameters().empty());
      const nn::AttentionInput in = c.input();
      CHECK(close(block->forward(in).to_vector(),
                  naive_cosformer(c, in.q, in.k, in.v, std::stod(eps)), 1e-10, 1e-9));
    }
  }
}

TEST_CASE("cosformer: further projections of q, k and v, in a pass and in steps") {
  for (const AttentionCase& c : attention_cases()) {
    INFO(c.name());
    const auto block = c.make("cosformer", {{"projections", "true"}}, kCosformerPositions);
    for (const auto& p : block->named_parameters()) {
      if (p.path.ends_with("bias"))
        p.parameter->value = normal(p.parameter->value.shape(), 9, Dtype::f64);
    }
    nn::AttentionInput in = c.input();
    const Tensor y = block->forward(in);
    CHECK(close(y.to_vector(),
                naive_cosformer(c, through(*block, "query", in.q), through(*block, "key", in.k),
                                through(*block, "value", in.v), 1e-6),
                1e-10, 1e-9));
    if (c.causal && c.lengths.empty()) check_steps(c, *block, c.T / 2);
  }
}

TEST_CASE("cosformer: more tokens than positions are refused") {
  AttentionCase c{.T = 41};
  const auto block = c.make("cosformer", {}, kCosformerPositions);
  CHECK_REFUSES(block->forward(c.input()), "cosformer", "41", "40");
  CHECK_REFUSES(block->make_state({.batch = 1, .capacity = 41}), "cosformer", "41", "40");
}

}  // namespace brine::test
