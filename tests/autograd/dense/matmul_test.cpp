// Gradients of the products: every transposition, shared operands, gradients added in place.
#include "autograd/ops.h"
#include "tensor/kernels/dense.h"
#include "tests/autograd/naive.h"
#include "tests/gradcheck.h"
#include "tests/head_copies.h"
#include "tests/refusals.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("matmul: every transposition") {
  for (bool ta : {false, true}) {
    for (bool tb : {false, true}) {
      Shape a = ta ? Shape{2, 3, 7, 5} : Shape{2, 3, 5, 7},
            b = tb ? Shape{2, 3, 6, 7} : Shape{2, 3, 7, 6};
      check_op({.name = join("matmul ", ta, tb),
                .inputs = {normal(a, 1), normal(b, 2)},
                .f = [=](test::In x) { return matmul(x[0], x[1], ta, tb, 0.7); }});
    }
  }
}

TEST_CASE("matmul: an operand shared by the batch gets the sum") {
  check_op({.name = "shared right",
            .inputs = {normal({4, 5, 7}, 1), normal({7, 6}, 2)},
            .f = [](test::In x) { return matmul(x[0], x[1]); }});
  check_op({.name = "shared left",
            .inputs = {normal({1, 7, 5}, 1), normal({3, 7, 6}, 2)},
            .f = [](test::In x) { return matmul(x[0], x[1], true); }});
  check_op({.name = "with itself", .inputs = {normal({5, 7}, 1)}, .f = [](test::In x) {
              return matmul(x[0], x[0], false, true);
            }});
}

TEST_CASE("linear: input, weight and bias") {
  auto f = [](test::In x) { return linear(x[0], x[1], x.size() > 2 ? x[2] : Tensor()); };
  auto oracle = [](test::In x) {
    const size_t O = size_t(x[1].dim(0)), I = size_t(x[1].dim(1));
    const test::Values a = x[0].to_vector(), w = x[1].to_vector();
    const test::Values bias = x.size() > 2 ? x[2].to_vector() : test::Values(O, 0);
    test::Values y;
    for (size_t r = 0; r < a.size(); r += I) {
      for (size_t o = 0; o < O; ++o) {
        double sum = bias[o];
        for (size_t i = 0; i < I; ++i) sum += a[r + i] * w[o * I + i];
        y.push_back(sum);
      }
    }
    return y;
  };
  for (const Shape& rows : {Shape{3, 11, 17}, {4, 17}, {1, 260}, {33, 4}, {70, 30}, {2111, 16}}) {
    const int64_t I = rows[rows.rank() - 1];
    for (int64_t O : {1, 9, 24}) {
      std::vector<Tensor> inputs = {normal(rows, 1), normal({O, I}, 2), normal({O}, 3)};
      // The sum of one row may be far below its products.
      check_op({.name = join("linear ", rows, " ", O),
                .inputs = inputs,
                .f = f,
                .oracle = oracle,
                .tolerance = rows[0] == 1 ? 1e-4 : 1e-5});
      inputs.pop_back();
      check_op({.name = "linear without bias", .inputs = inputs, .f = f, .oracle = oracle});
    }
  }
}

TEST_CASE("linear_activation is activate(linear()), its gradients too") {
  for (Activation f :
       {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
    INFO(int(f));
    for (int64_t rows : {11, 300}) {
      const Tensor x = normal({3, rows, 17}, 1), w = normal({9, 17}, 2), b = normal({9}, 3);
      const Tensor dy = normal({3, rows, 9}, 4);
      check_op({.name = join("linear_activation ", int(f), " ", rows),
                .inputs = {x, w, b},
                .f = [=](test::In in) { return linear_activation(in[0], in[1], in[2], f); },
                .grad_tolerance = f == Activation::relu ? 0 : 1e-6});
      std::vector<Tensor> fused = {require_grad(x), require_grad(w), require_grad(b)};
      std::vector<Tensor> separate = {require_grad(x), require_grad(w), require_grad(b)};
      const Tensor y = linear_activation(fused[0], fused[1], fused[2], f);
      const Tensor wanted = activate(linear(separate[0], separate[1], separate[2]), f);
      CHECK(brine::test::same_bits(y, wanted));
      backward(y, dy);
      backward(wanted, dy);
      for (size_t i = 0; i < 3; ++i) {
        CHECK(brine::test::same_bits(grad(fused[i]), grad(separate[i])));
      }
      const NoGrad off;
      CHECK(brine::test::same_bits(linear_activation(x, w, {}, f), activate(linear(x, w, {}), f)));
    }
  }
  CHECK_REFUSES(linear_activation(normal({4, 3}, 1), normal({5, 4}, 1), {}, Activation::relu),
                "linear_activation: x [4, 3] must end in 4");
}

TEST_CASE("linear adds to the gradient buffer of a parameter") {
  Tensor x = normal({5, 4}, 1), dy = normal({5, 3}, 4);
  Tensor buffer = Tensor::full({3, 4}, 2), bias_buffer = Tensor::full({3}, 3);
  Tensor w = require_grad(normal({3, 4}, 2), buffer);
  Tensor b = require_grad(normal({3}, 3), bias_buffer);
  backward(linear(x, w, b), dy);
  Tensor fresh = require_grad(w.detach().clone()), fresh_b = require_grad(b.detach().clone());
  backward(linear(x, fresh, fresh_b), dy);
  std::vector<double> expected = grad(fresh).to_vector(), bias = grad(fresh_b).to_vector();
  for (double& v : expected) v += 2;
  for (double& v : bias) v += 3;
  CHECK(test::close(buffer.to_vector(), expected, 1e-5, 1e-6));
  CHECK(test::close(bias_buffer.to_vector(), bias, 1e-5, 1e-6));
}

TEST_CASE("linear_in_out is linear() of the transposed weight, its gradients too") {
  auto f = [](test::In x) { return linear_in_out(x[0], x[1], x.size() > 2 ? x[2] : Tensor()); };
  const Tensor x = normal({3, 11, 17}, 1), w = normal({17, 9}, 2), b = normal({9}, 3);
  check_op({.name = "linear_in_out", .inputs = {x, w, b}, .f = f});
  check_op({.name = "linear_in_out without bias", .inputs = {x, w}, .f = f});
  for (const Tensor& bias : {b, Tensor()}) {
    CHECK(test::close(linear_in_out(x, w, bias), linear(x, permute(w, {1, 0}), bias), 1e-5, 1e-6));
  }
  // A parameter's buffers are added to.
  Tensor buffer = Tensor::full({17, 9}, 2), bias_buffer = Tensor::full({9}, 3);
  const Tensor dy = normal({3, 11, 9}, 4), flat = dy.view({33, 9});
  backward(linear_in_out(x, require_grad(w.clone(), buffer), require_grad(b.clone(), bias_buffer)),
           dy);
  const Tensor wanted = matmul(x.view({33, 17}), flat, true) + 2;
  CHECK(test::close(buffer, wanted, 1e-5, 1e-5));
  const Tensor ones = Tensor::full({1, 33}, 1);
  CHECK(test::close(bias_buffer, matmul(ones, flat).view({9}) + 3, 1e-5, 1e-5));
  CHECK_THROWS_AS(linear_in_out(x, permute(w, {1, 0}), b), Error);
  CHECK_THROWS_AS(linear_in_out(x, w, normal({17}, 3)), Error);
}

TEST_CASE("products name the shapes they refuse") {
  Tensor a = normal({2, 3, 4}, 1), b = normal({3, 5, 6}, 2);
  CHECK_THROWS_WITH_AS(matmul(a, b), doctest::Contains("inner size"), Error);
  CHECK_THROWS_WITH_AS(matmul(a, normal({3, 4, 5}, 1)), doctest::Contains("leading axes"), Error);
  CHECK_THROWS_WITH_AS(matmul(a, normal({4, 5}, 1, Dtype::f64)), doctest::Contains("f64"), Error);
  CHECK_THROWS_WITH_AS(linear(a, normal({5, 3}, 1), {}), doctest::Contains("must end in 3"), Error);
  CHECK_REFUSES(linear(a, normal({5, 4}, 1), normal({4}, 1)), "bias");
}

TEST_CASE("linear_pair: linear of two inputs, of which a group of heads shares the second") {
  const int64_t B = 2, H = 6, T = 5;
  for (int64_t G : {1, 2, 3, 6}) {
    check_op({.name = join("linear_pair G ", G),
              .inputs = {normal({B, H, T, 4}, 1), normal({B, G, T, 3}, 2), normal({7, 7}, 3),
                         normal({7}, 4)},
              .f = [](test::In x) { return linear_pair(x[0], x[1], x[2], x[3]); },
              .oracle =
                  [=](test::In x) {
                    const test::Array a(x[0]), b(test::copied_heads(x[1], H)), w(x[2]), bias(x[3]);
                    return test::tabulate({B, H, T, 7}, [&](const test::Coordinates& at) {
                      double sum = bias(at[3]);
                      for (int64_t c = 0; c < 4; ++c) {
                        sum += a(at[0], at[1], at[2], c) * w(at[3], c);
                      }
                      for (int64_t c = 0; c < 3; ++c) {
                        sum += b(at[0], at[1], at[2], c) * w(at[3], 4 + c);
                      }
                      return sum;
                    });
                  }});
  }
  CHECK_REFUSES(
      linear_pair(normal({B, H, T, 4}, 1), normal({B, 4, T, 3}, 2), normal({7, 7}, 3), {}),
      "[2, 4, 5, 3]");
}

TEST_CASE("group_matmul: the rows of a head times the matrix of its group") {
  const int64_t B = 2, H = 6, R = 5, S = 7, d = 3;
  for (int64_t G : {1, 2, 3, 6}) {
    for (bool transposed : {false, true}) {
      const int64_t n = transposed ? d : S, out = transposed ? S : d;
      check_op({.name = join("group_matmul G ", G, " ", transposed),
                .inputs = {normal({B, H, R, n}, 1), normal({B, G, S, d}, 2)},
                .f = [=](test::In x) { return group_matmul(x[0], x[1], transposed); },
                .oracle =
                    [=](test::In x) {
                      const test::Array rows(x[0]), kv(test::copied_heads(x[1], H));
                      return test::tabulate({B, H, R, out}, [&](const test::Coordinates& at) {
                        double sum = 0;
                        for (int64_t i = 0; i < n; ++i) {
                          sum += rows(at[0], at[1], at[2], i) *
                                 kv(at[0], at[1], transposed ? at[3] : i, transposed ? i : at[3]);
                        }
                        return sum;
                      });
                    }});
    }
  }
  CHECK_THROWS_WITH_AS(group_matmul(normal({1, 6, 2, 3}, 1), normal({1, 4, 2, 3}, 2), true),
                       doctest::Contains("[1, 4, 2, 3]"), Error);
}

TEST_CASE(
    "linear, linear_in_out, embedding: weights of 16 bits are their values, without gradients") {
  const Tensor ids = Tensor::from(std::vector<int32_t>{4, 0, 4}, {3});
  for (Dtype stored : {Dtype::bf16, Dtype::f16}) {
    const Tensor w = normal({9, 24}, 1).to(stored), wide = w.to(Dtype::f32), b = normal({9}, 2);
    const Tensor turned = w.transpose(0, 1).contiguous();
    for (int64_t rows : {1, 5, 32, 33, 70}) {
      const Tensor x = normal({rows, 24}, 3);
      const Tensor y = linear(x, wide, b);
      // Few rows of bf16 are read in pairs: the sums have another order.
      if (rows > kFewRows) CHECK(brine::test::same_bits(linear(x, w, b), y));
      CHECK(brine::test::close_to_scale(linear(x, w, b), y, 1e-6));
      CHECK(brine::test::same_bits(linear_in_out(x, turned, b),
                                   linear_in_out(x, turned.to(Dtype::f32), b)));
    }
    CHECK(brine::test::same_bits(embedding(w, ids), embedding(wide, ids)));
    const Tensor x = require_grad(normal({3, 24}, 3), Tensor::zeros({3, 24}));
    CHECK_REFUSES(linear(x, w, b), "linear", "gradients", join(stored));
    CHECK_REFUSES(linear_in_out(x, turned, b), "linear_in_out", "gradients", join(stored));
    CHECK_REFUSES(linear(normal({3, 24}, 3, Dtype::f64), w, b), "linear", "f64", join(stored));
  }
}
