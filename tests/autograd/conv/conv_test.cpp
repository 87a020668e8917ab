// Gradients of convolution, alone and in the chain of SEA's decoder.
#include "autograd/ops.h"
#include "tests/gradcheck.h"

using namespace brine;
using brine::test::check_op;
using brine::test::close_to_scale;
using brine::test::normal;

TEST_CASE("conv2d: image, weight and bias") {
  Tensor lengths = Tensor::from(std::vector<int64_t>{9, 5}, {2});
  for (int64_t stride : {1, 2}) {
    for (bool relu : {false, true}) {
      Convolution conf{.dilation = 2,
                       .stride = stride,
                       .relu = relu,
                       .halo_before = 2,
                       .halo_after = 1,
                       .lengths = lengths,
                       .row_stride = stride};
      check_op({.name = join("conv2d stride ", stride, relu ? " relu" : ""),
                .inputs = {normal({2, 13, 6, 3}, 1), normal({4, 3, 3, 3}, 2), normal({4}, 3)},
                .f = [=](const auto& x) { return conv2d(x[0], x[1], x[2], conf); }});
    }
  }
  check_op({.name = "conv2d without bias",
            .inputs = {normal({1, 7, 5, 2}, 1), normal({3, 2, 2, 3}, 2)},
            .f = [](const auto& x) { return conv2d(x[0], x[1], {}); }});
  check_op({.name = "conv2d 1x1",
            .inputs = {normal({2, 7, 5, 4}, 1), normal({3, 4, 1, 1}, 2), normal({3}, 3)},
            .f = [](const auto& x) { return conv2d(x[0], x[1], x[2]); }});
}

TEST_CASE("two convolutions with a halo between them are causal and padded by zeros") {
  auto f = [](const std::vector<Tensor>& x) {
    Tensor a = conv2d(x[0], x[1], x[2], {.dilation = 2, .relu = true, .halo_before = 4});
    Tensor b = conv2d(a, x[3], {}, {.dilation = 2, .relu = true});
    return upsample(b, {.tokens = 9, .columns = 12, .stride = 1});
  };
  std::vector<Tensor> inputs = {normal({1, 13, 6, 2}, 1), normal({4, 2, 3, 3}, 2), normal({4}, 3),
                                normal({4, 4, 3, 3}, 4)};
  check_op({.name = "chain", .inputs = inputs, .f = f});
  Tensor y = f(inputs);
  Tensor changed = inputs[0].clone();
  changed.data<float>()[(4 + 5) * 12] += 1;  // token 5, after the halo of 4
  Tensor z = f({changed, inputs[1], inputs[2], inputs[3]});
  CHECK(test::same_bits(y.slice(1, 0, 5), z.slice(1, 0, 5)));
  CHECK_FALSE(test::same_bits(y.slice(1, 5, 1), z.slice(1, 5, 1)));
}

TEST_CASE("conv2d names what it refuses") {
  Tensor x = normal({2, 4, 5, 3}, 1), w = normal({4, 3, 3, 3}, 2);
  CHECK_THROWS_WITH_AS(conv2d(x, normal({4, 2, 3, 3}, 2), {}), doctest::Contains("[out, 3"), Error);
  CHECK_THROWS_WITH_AS(conv2d(x, normal({4, 3, 3, 2}, 2), {}), doctest::Contains("odd"), Error);
  CHECK_THROWS_WITH_AS(conv2d(x, w, {}, {.dilation = 2}), doctest::Contains("smaller"), Error);
  CHECK_THROWS_WITH_AS(conv2d(x, w, normal({3}, 1)), doctest::Contains("bias"), Error);
}
