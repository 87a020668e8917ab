// Random features against naive f64 sums, and their gradients.
#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "tests/estimator_oracle.h"

namespace brine::test {

TEST_CASE("relu_features: values, padding and gradient") {
  const Tensor R = normal({7, 5}, 9);
  const Tensor lengths = lengths_of({6, 3});
  check_op(
      {.name = "relu_features",
       .inputs = {normal({2, 3, 6, 5}, 1)},
       .f = [=](const auto& x) { return relu_features(x[0], R.to(x[0].dtype()), 1e-3, lengths); },
       .oracle =
           [=](const auto& x) {
             Values in = x[0].to_vector(), r = R.to_vector(), y;
             for (int64_t row = 0; row < 36; ++row) {
               for (int64_t j = 0; j < 7; ++j) {
                 double sum = 0;
                 for (int64_t c = 0; c < 5; ++c)
                   sum += in[size_t(row * 5 + c)] * r[size_t(j * 5 + c)];
                 sum = std::max(0.0, sum / std::sqrt(std::sqrt(5.0))) + 1e-3;
                 y.push_back(row % 6 < (row < 18 ? 6 : 3) ? sum : 0.0);
               }
             }
             return y;
           }});
}

TEST_CASE("softmax_features: values and the gradient with constant maxima") {
  const Tensor R = normal({7, 4}, 9, Dtype::f64);
  const std::vector<int64_t> L = {5, 2};
  const Tensor x = normal({2, 2, 5, 4}, 1, Dtype::f64), lengths = lengths_of(L);
  const Values in = x.to_vector(), r = R.to_vector();
  auto projected = [&](const Values& from, int64_t row, int64_t j) {
    double sum = 0;
    for (int64_t c = 0; c < 4; ++c) sum += from[size_t(row * 4 + c)] * r[size_t(j * 4 + c)];
    return sum / std::sqrt(2.0);
  };
  for (FeatureSide side : {FeatureSide::queries, FeatureSide::keys}) {
    Values most(20, -1e9);  // of each row's group
    for (int64_t row = 0; row < 20; ++row) {
      for (int64_t other = 0; other < 20; ++other) {
        bool together = side == FeatureSide::keys ? other / 5 == row / 5 : other == row;
        if (!together || other % 5 >= L[size_t(other / 10)]) continue;
        for (int64_t j = 0; j < 7; ++j)
          most[size_t(row)] = std::max(most[size_t(row)], projected(in, other, j));
      }
    }
    auto oracle = [&](const Values& from) {
      Values y;
      for (int64_t row = 0; row < 20; ++row) {
        double square = 0;
        for (int64_t c = 0; c < 4; ++c)
          square += from[size_t(row * 4 + c)] * from[size_t(row * 4 + c)];
        for (int64_t j = 0; j < 7; ++j) {
          double phi = std::exp(projected(from, row, j) - square / 4 - most[size_t(row)]) + 1e-2;
          y.push_back(row % 5 < L[size_t(row / 10)] ? phi / std::sqrt(7.0) : 0.0);
        }
      }
      return y;
    };
    auto f = [&](const std::vector<Tensor>& v) {
      return softmax_features(v[0], R.to(v[0].dtype()), 1e-2, lengths, side);
    };
    check_op({.name = "softmax_features", .inputs = {x}, .f = f, .grad_tolerance = 0});
    Tensor y = f({x}), dy = cotangent(y);
    CHECK(close(y.to_vector(), oracle(in), 1e-13, 1e-12));
    const Values weight = dy.to_vector(), g = run(f, {x}, dy).grads[0].to_vector();
    for (size_t i = 0; i < in.size(); ++i) {
      auto loss = [&](double step) {
        Values moved = in, out;
        moved[i] += step;
        out = oracle(moved);
        double sum = 0;
        for (size_t e = 0; e < out.size(); ++e) sum += out[e] * weight[e];
        return sum;
      };
      CHECK(g[i] == doctest::Approx((loss(1e-5) - loss(-1e-5)) / 2e-5).epsilon(1e-6));
    }
  }
}

TEST_CASE("relu_features_step gives the features of one row") {
  const Tensor R = normal({7, 5}, 9), x = normal({2, 3, 6, 5}, 1);
  const Tensor full = relu_features(x, R, 1e-3, {});
  for (std::vector<int64_t> row : {std::vector<int64_t>{0, 5}, {3, 3}}) {
    CHECK(close(relu_features_step(rows_at(x, row), R, 1e-3), rows_at(full, row), 1e-7, 1e-6));
  }
}

}  // namespace brine::test
