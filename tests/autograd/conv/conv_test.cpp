// Convolution against its definition, its gradients, and the chain of SEA's decoder.
#include "autograd/ops.h"
#include "tests/autograd/naive.h"
#include "tests/gradcheck.h"
#include "tests/refusals.h"

using namespace brine;
using namespace brine::test;

namespace {

struct ConvCase {
  int64_t B = 2, rows = 9, W = 5, C = 3, O = 4, kT = 3, kW = 3;
  bool bias = true;
  Convolution conf = {};
};

// One output at a time: the sum over channels and taps, 0 in halos and beyond a sequence's tokens.
test::Values naive_conv(const std::vector<Tensor>& in, const ConvCase& c,
                        const std::vector<int64_t>& tokens) {
  const test::Values x = in[0].to_vector(), w = in[1].to_vector();
  const test::Values bias = c.bias ? in[2].to_vector() : test::Values(size_t(c.O), 0);
  const Convolution& conf = c.conf;
  const int64_t rows = (c.rows - c.kT) / conf.stride + 1;
  const int64_t height = conf.halo_before + rows + conf.halo_after;
  return test::tabulate({c.B, height, c.W, c.O}, [&](const test::Coordinates& at) {
    const int64_t b = at[0], r = at[1] - conf.halo_before, o = at[3];
    if (r < 0 || r >= rows) return 0.0;
    if (!tokens.empty() && r * conf.row_stride >= tokens[size_t(b)]) return 0.0;
    double sum = bias[size_t(o)];
    for (int64_t t = 0; t < c.kT; ++t) {
      for (int64_t k = 0; k < c.kW; ++k) {
        const int64_t column = at[2] + k - c.kW / 2;
        if (column < 0 || column >= c.W) continue;
        const int64_t row = b * c.rows + r * conf.stride + t;
        for (int64_t i = 0; i < c.C; ++i) {
          sum += x[size_t((row * c.W + column) * c.C + i)] *
                 w[size_t(((o * c.C + i) * c.kT + t) * c.kW + k)];
        }
      }
    }
    return conf.relu ? std::max(sum, 0.0) : sum;
  });
}

// Differences would step over the kink of a ReLU in one of many outputs.
// `tokens`: of each sequence; empty: all.
void check_conv(const ConvCase& c, const std::vector<int64_t>& tokens = {}) {
  Convolution conf = c.conf;
  conf.lengths = test::lengths_of(tokens);
  std::vector<Tensor> inputs = {normal({c.B, c.rows, c.W, c.C}, 1),
                                normal({c.O, c.C, c.kT, c.kW}, 2)};
  if (c.bias) inputs.push_back(normal({c.O}, 3));
  check_op({.name = join("conv2d B ", c.B, " rows ", c.rows, " W ", c.W, " ", c.C, " -> ", c.O,
                         " kernel ", c.kT, "x", c.kW, " stride ", conf.stride),
            .inputs = inputs,
            .f = [=](test::In x) { return conv2d(x[0], x[1], c.bias ? x[2] : Tensor(), conf); },
            .oracle = [=](test::In x) { return naive_conv(x, c, tokens); },
            .grad_tolerance = conf.relu && c.B * c.rows * c.W * c.O > 1000 ? 0 : 1e-6});
}

}  // namespace

TEST_CASE("conv2d: sizes, stride, halos and lengths, with gradients") {
  check_conv({});
  check_conv({.B = 1, .rows = 1, .W = 1, .C = 1, .O = 1, .kT = 1, .kW = 1});
  check_conv({.B = 0});
  check_conv({.rows = 3, .conf = {.halo_after = 1}});
  check_conv({.W = 2, .kW = 9});  // wider than the image
  for (int64_t rows : {5, 33, 63, 257}) check_conv({.B = 1, .rows = rows, .W = 7, .O = 5});
  for (int64_t W : {1, 2, 31, 32, 33}) check_conv({.rows = 7, .W = W});
  for (int64_t C : {1, 2, 16, 17, 31}) check_conv({.W = 4, .C = C, .O = 33 - C});
  check_conv({.rows = 11, .W = 7, .C = 33, .O = 70});
  check_conv({.B = 5, .rows = 16}, {0, 14, 3, 99, 5});
  for (int64_t stride : {1, 2, 3}) {
    for (bool relu : {false, true}) {
      Convolution conf{
          .stride = stride, .relu = relu, .halo_before = 4, .halo_after = 1, .row_stride = stride};
      check_conv({.rows = 13, .W = 6, .bias = !relu, .conf = conf}, {9, 5});
      check_conv({.B = 3, .rows = 141, .W = 6, .C = 8, .O = 12, .conf = conf}, {141, 70, 0});
    }
  }
  check_conv({.rows = 70, .W = 16, .C = 24, .O = 12, .conf = {.halo_before = 2}});
}

TEST_CASE("conv2d of one by one is a product") {
  check_conv(
      {.rows = 131, .C = 24, .O = 12, .kT = 1, .kW = 1, .bias = false, .conf = {.halo_before = 1}},
      {131, 64});
  check_conv({.rows = 31, .O = 2, .kT = 1, .kW = 1, .conf = {.relu = true}});
  check_conv({.rows = 31, .O = 2, .kT = 1, .kW = 1, .conf = {.stride = 2}});
  check_conv({.rows = 31, .O = 2, .kT = 2, .kW = 5});
}

TEST_CASE("two convolutions with a halo between them are causal and padded by zeros") {
  auto f = [](test::In x) {
    Tensor a = conv2d(x[0], x[1], x[2], {.relu = true, .halo_before = 2});
    Tensor b = conv2d(a, x[3], {}, {.relu = true});
    return upsample(b, {.tokens = 9, .columns = 12, .stride = 1});
  };
  std::vector<Tensor> inputs = {normal({1, 11, 6, 2}, 1), normal({4, 2, 3, 3}, 2), normal({4}, 3),
                                normal({4, 4, 3, 3}, 4)};
  check_op({.name = "chain", .inputs = inputs, .f = f});
  Tensor y = f(inputs);
  Tensor changed = inputs[0].clone();
  changed.data<float>()[(2 + 5) * 12] += 1;  // token 5, after the halo of 2
  Tensor z = f({changed, inputs[1], inputs[2], inputs[3]});
  CHECK(test::same_bits(y.slice(1, 0, 5), z.slice(1, 0, 5)));
  CHECK_FALSE(test::same_bits(y.slice(1, 5, 1), z.slice(1, 5, 1)));
}

TEST_CASE("conv2d names what it refuses") {
  Tensor x = normal({2, 4, 5, 3}, 1), w = normal({4, 3, 3, 3}, 2);
  CHECK_THROWS_WITH_AS(conv2d(x, normal({4, 2, 3, 3}, 2), {}), doctest::Contains("[out, 3"), Error);
  CHECK_THROWS_WITH_AS(conv2d(x, normal({4, 3, 3, 2}, 2), {}), doctest::Contains("odd"), Error);
  CHECK_THROWS_WITH_AS(conv2d(x, normal({4, 3, 5, 3}, 2), {}), doctest::Contains("smaller"), Error);
  CHECK_THROWS_WITH_AS(conv2d(x, w, normal({3}, 1)), doctest::Contains("bias"), Error);
}

TEST_CASE("the ops of one row name what they refuse") {
  const Tensor w = normal({4, 3, 3, 3}, 1);
  Tensor window = Tensor::zeros({2, 3, 7, 3});
  CHECK(convolve_row(window, w, {}, {}).shape() == Shape{2, 5, 4});
  CHECK_REFUSES(push_row(window, normal({2, 5, 3}, 2), 2), "margins of 2");
  CHECK_REFUSES(convolve_row(window, normal({4, 3, 5, 3}, 2), {}, {}), "5 rows of weights");
  CHECK_REFUSES(convolve_row(window, normal({4, 2, 3, 3}, 2), {}, {}), "do not fit the window");
  CHECK_REFUSES(convolve_row(window, w, normal({3}, 3), {}), "bias");
}

TEST_CASE("convolve_row: the newest row of the causal convolution, as rows are pushed") {
  for (auto [C, O] : {std::pair<int64_t, int64_t>{1, 1}, {6, 3}, {24, 12}, {48, 48}, {5, 70}}) {
    for (int64_t kernel : {1, 3}) {
      const int64_t B = 2, T = 7, W = 11, span = kernel - 1, margin = span / 2;
      INFO(join(C, " to ", O, ", kernel ", kernel));
      for (Dtype type : {Dtype::f32, Dtype::f64}) {
        const Tensor x = normal({B, T, W, C}, 1, type), b = normal({O}, 3, type),
                     w = normal({O, C, kernel, kernel}, 2, type);
        Tensor padded = Tensor::zeros({B, span + T, W, C}, type);
        copy_into(padded.slice(1, span, T), x);
        const Convolution conf{.relu = true};
        const Tensor full = conv2d(padded, w, b, conf);
        Tensor window = Tensor::zeros({B, span + 1, W + 2 * margin, C}, type);
        for (int64_t t = 0; t < T; ++t) {
          push_row(window, slice(x, 1, t, 1).view({B, W, C}), margin);
          const Tensor y = convolve_row(window, w, b, conf);
          CHECK(close_to_scale(y, slice(full, 1, t, 1).view({B, W, O}),
                               type == Dtype::f64 ? 1e-13 : 1e-5));
          CHECK(test::same_bits(convolve_row(window.slice(0, 1, 1), w, b, conf), y.slice(0, 1, 1)));
        }
      }
    }
  }
}
