// The Performer against its definition, and its features against the softmax that they estimate.
#include <numeric>

#include "tests/nn/attention/definition.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

// The features of row t by the paper's formulas, before softmax features are divided by their
// largest.
std::vector<double> features(const Array& x, const Array& projection, int64_t m,
                             const AttentionCase& c, int64_t b, int64_t h, int64_t t) {
  std::vector<double> out;
  for (int64_t r = 0; r < m; ++r) {
    double product = 0;
    for (int64_t i = 0; i < c.d; ++i)
      product += x(b, h, t, i) / std::sqrt(std::sqrt(double(c.d))) * projection(r, i);
    out.push_back(product);
  }
  return out;
}

double square(const Array& x, const AttentionCase& c, int64_t b, int64_t h, int64_t t) {
  double sum = 0;
  for (int64_t i = 0; i < c.d; ++i) sum += x(b, h, t, i) * x(b, h, t, i);
  return sum / std::sqrt(double(c.d));
}

Tensor projection_of(nn::Attention& block) {
  const auto buffers = block.named_buffers();
  REQUIRE(buffers.size() == 1);
  CHECK(buffers[0].path == "features.projection");
  return buffers[0].buffer->value;
}

// The output with ReLU features, plus eps, and 1e-6 in the sum of key features.
std::vector<double> naive_relu(const AttentionCase& c, const nn::AttentionInput& in,
                               const Tensor& projection, double eps) {
  const Array q(in.q), k(in.k), R(projection);
  auto positive = [&](const Array& x, int64_t b, int64_t h, int64_t t) {
    std::vector<double> phi = features(x, R, projection.dim(0), c, b, h, t);
    for (double& value : phi) value = std::max(value, 0.0) + eps;
    return phi;
  };
  auto weight = [&](int64_t b, int64_t h, int64_t t, int64_t j) {
    const std::vector<double> phi = positive(q, b, h, t), key = positive(k, b, c.group(h), j);
    return std::inner_product(phi.begin(), phi.end(), key.begin(), 0.0);
  };
  return attention_by(c, in.v, weight, [&](int64_t b, int64_t h, int64_t t) {
    const std::vector<double> phi = positive(q, b, h, t);
    return 1e-6 * std::accumulate(phi.begin(), phi.end(), 0.0);
  });
}

// With softmax features without their eps, whose maxima cancel.
std::vector<double> naive_softmax(const AttentionCase& c, const nn::AttentionInput& in,
                                  const Tensor& projection) {
  const Array q(in.q), k(in.k), R(projection);
  const int64_t m = projection.dim(0);
  return attention_by(c, in.v, [&](int64_t b, int64_t h, int64_t t, int64_t j) {
    const int64_t g = c.group(h);
    const std::vector<double> x = features(q, R, m, c, b, h, t), y = features(k, R, m, c, b, g, j);
    const double norms = (square(q, c, b, h, t) + square(k, c, b, g, j)) / 2;
    double w = 0;
    for (size_t r = 0; r < x.size(); ++r) w += std::exp(x[r] + y[r] - norms);
    return w;
  });
}

}  // namespace

TEST_CASE("performer: ReLU features give the kernel attention of their products") {
  for (const AttentionCase& c : attention_cases()) {
    INFO(c.name());
    for (const char* eps : {"0", "0.05"}) {
      const auto block =
          c.make("performer", {{"features", "relu"}, {"feature_eps", eps}, {"feature_count", "9"}});
      const nn::AttentionInput in = c.input();
      CHECK(projection_of(*block).shape() == Shape{9, c.d});
      const double floor = eps[1] ? 0.05 : 1e-3;
      CHECK(close(block->forward(in).to_vector(), naive_relu(c, in, projection_of(*block), floor),
                  1e-12, 1e-11));
    }
  }
}

TEST_CASE("performer: softmax features give the exponential kernel of their products") {
  for (const AttentionCase& c : attention_cases()) {
    if (c.causal) continue;
    INFO(c.name());
    // An encoder takes them when nothing is said.
    const auto block = c.make("performer", {{"feature_eps", "1e-15"}});
    const nn::AttentionInput in = c.input();
    CHECK(close(block->forward(in).to_vector(), naive_softmax(c, in, projection_of(*block)), 1e-9,
                1e-9));
  }
}

TEST_CASE("performer: with many softmax features it is softmax attention") {
  const AttentionCase c{.causal = false};
  const nn::AttentionInput in = c.input(0.5);
  const Tensor exact = c.make("dense")->forward(in), mean = sub(exact, exact);
  auto error = [&](const char* count) {
    const auto block = c.make("performer", {{"feature_count", count}, {"feature_eps", "1e-15"}});
    const Tensor difference = sub(block->forward(in), exact);
    return std::sqrt(square_sum(difference).item() / square_sum(exact).item());
  };
  const double few = error("16"), many = error("8192");
  INFO("relative errors " << few << " and " << many);
  CHECK(few > 0.1);
  CHECK(many < 0.02);
}

TEST_CASE("performer: the settings count the features") {
  const AttentionCase c;
  const auto block = c.make("performer", {{"feature_divisor", "2"}});
  const Tensor first = projection_of(*block);
  CHECK(first.shape() == Shape{5, c.d});  // floor(6 ln 6 / 2)
  const auto counted = c.make("performer", {{"feature_count", "5"}});
  CHECK(same_bits(projection_of(*counted), first));
}

TEST_CASE("performer: a causal model with softmax features is refused") {
  CHECK_REFUSES(AttentionCase{}.make("performer", {{"features", "softmax"}}), "performer",
                "softmax", "future", "relu");
}

}  // namespace brine::test
