// cosFormer against its definition: ReLU products times the cosine of the distance.
#include <numbers>

#include "tests/nn/attention/definition.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

constexpr int64_t kCosformerPositions = 40;

std::vector<double> naive_cosformer(const AttentionCase& c, const Tensor& queries,
                                    const Tensor& keys, const Tensor& v, double eps) {
  const Elements q(queries), k(keys);
  return attention_by(c, v, [&](int64_t b, int64_t h, int64_t t, int64_t j) {
    double w = 0;
    for (int64_t i = 0; i < c.d; ++i) {
      w += (std::max(q(b, h, t, i), 0.0) + eps) * (std::max(k(b, c.group(h), j, i), 0.0) + eps);
    }
    return w * std::cos(std::numbers::pi * double(t - j) / double(2 * kCosformerPositions));
  });
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

TEST_CASE("cosformer: more tokens than positions are refused") {
  AttentionCase c{.T = 41};
  const auto block = c.make("cosformer", {}, kCosformerPositions);
  check_refuses([&] { block->forward(c.input()); }, {"cosformer", "41", "40"});
}

}  // namespace brine::test
