// The modules: convolution, dropout, feed-forward; names and refusals.
#include "nn/layers/layers.h"

#include <cmath>

#include "tests/gradcheck.h"

namespace brine::test {
namespace {

nn::Init fresh(uint64_t seed = 3) {
  return {.random = {.seed = seed}, .dtype = Dtype::f64, .linear_std = 0.5};
}

}  // namespace

TEST_CASE("conv2d module: names, initial values, and errors") {
  nn::Init init = fresh();
  nn::Conv2d conv(init, {.in = 4, .out = 50});
  REQUIRE(conv.named_parameters().size() == 2);
  CHECK(conv.named_parameters()[0].path == "weight");
  CHECK(conv.named_parameters()[1].path == "bias");
  CHECK_FALSE(conv.named_parameters()[1].parameter->decay);
  const double max_weight = largest(conv.weight.value.to_vector());
  CHECK(max_weight <= 1.0 / 6);  // 1 / sqrt(4 * 3 * 3)
  CHECK(max_weight > 0.99 / 6);
  nn::Conv2d bare(init, {.bias = false});
  CHECK(bare.named_parameters().size() == 1);
  CHECK_THROWS_WITH_AS(nn::Conv2d(init, {.kernel = 4}), "conv2d: kernel 4 must be odd", Error);
  CHECK_THROWS_WITH_AS(nn::Conv2d(init, {.in = 0}), "conv2d: 0 to 1 channels", Error);
  CHECK_THROWS_WITH_AS(nn::Conv2d(init, {.stride = 0}), doctest::Contains("stride 0"), Error);
}

TEST_CASE("dropout module: nothing in evaluation, zeros and a larger rest in training") {
  nn::Dropout dropout(0.25), none(0);
  Tensor x = Tensor::full({100, 100}, 3, Dtype::f64);
  RandomStream random{.seed = 5};
  CHECK(same_bits(dropout(x, nullptr), x));
  CHECK(same_bits(none(x, &random), x));
  CHECK(random.counter == 0);  // neither drew random numbers
  int64_t zeros = 0;
  for (double y : dropout(x, &random).to_vector()) {
    zeros += y == 0;
    CHECK((y == 0 || y == doctest::Approx(4).epsilon(1e-12)));
  }
  CHECK(zeros > 2280);  // 2500, five standard deviations of 43
  CHECK(zeros < 2720);
  CHECK(dropout.named_parameters().empty());
  CHECK_THROWS_WITH_AS(nn::Dropout(1.0), doctest::Contains("dropout: probability 1"), Error);
}

TEST_CASE("feed-forward: two linear layers around the activation, with gradients") {
  for (bool rectified : {true, false}) {
    nn::Init init = fresh();
    nn::Linear fc1(init, 5, 7), fc2(init, 7, 5);
    const nn::FeedForward mlp{
        .up = fc1, .down = fc2, .activation = rectified ? Activation::relu : Activation::gelu};
    fc1.bias->value = normal({7}, 8, Dtype::f64);
    fc2.bias->value = normal({5}, 9, Dtype::f64);
    const Tensor x = normal({3, 5}, 1, Dtype::f64);
    const double *w1 = fc1.weight.value.data<double>(), *b1 = fc1.bias->value.data<double>(),
                 *w2 = fc2.weight.value.data<double>(), *b2 = fc2.bias->value.data<double>();
    std::vector<double> wanted;
    for (int64_t r = 0; r < 3; ++r) {
      std::vector<double> inner, row(b2, b2 + 5);
      for (int64_t i = 0; i < 7; ++i) {
        double h = b1[i];
        for (int64_t c = 0; c < 5; ++c) h += w1[i * 5 + c] * x.data<double>()[r * 5 + c];
        inner.push_back(rectified ? std::max(h, 0.0) : h * 0.5 * std::erfc(-h / std::sqrt(2.0)));
      }
      for (int64_t o = 0; o < 5; ++o) {
        for (int64_t i = 0; i < 7; ++i) row[size_t(o)] += w2[o * 7 + i] * inner[size_t(i)];
      }
      wanted.insert(wanted.end(), row.begin(), row.end());
    }
    CHECK(close(mlp(x).to_vector(), wanted, 1e-12, 1e-12));
    CHECK(gradcheck([&](In in) { return mlp(in[0]); }, {x}) < 1e-6);
  }
}

}  // namespace brine::test
