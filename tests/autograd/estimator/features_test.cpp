// Random features against naive f64 sums, and their gradients.
#include <algorithm>
#include <cmath>

#include "tests/estimator_oracle.h"
#include "tests/refusals.h"

namespace brine::test {

namespace {

struct FeatureSizes {
  int64_t B, H, T, m, d;
  std::vector<int64_t> lengths = {};
};

const FeatureSizes kFeatureSizes[] = {{2, 3, 6, 7, 5, {6, 3}},       {1, 1, 1, 1, 1},
                                      {2, 3, 5, 7, 3, {0, 4}},       {3, 2, 9, 33, 40, {9, 1, 8}},
                                      {2, 1, 300, 5, 4, {270, 129}}, {1, 2, 0, 4, 4},
                                      {2, 1, 3, 4, 2, {0, 0}}};

// A GPU makes rows as long as it needs them, with zeros at the end.
Tensor narrow(const Tensor& phi, int64_t m) {
  const int64_t more = phi.dim(3) - m;
  for (double x : phi.detach().slice(3, m, more).to(Device{}).contiguous().to_vector())
    CHECK(x == 0);
  return slice(phi, 3, 0, m);
}

}  // namespace

TEST_CASE("relu_features: values, padding and gradient") {
  for (const FeatureSizes& s : kFeatureSizes) {
    const Tensor R = normal({s.m, s.d}, 9), lengths = lengths_of(s.lengths);
    check_op(
        {.name = join("relu_features T ", s.T, " m ", s.m),
         .inputs = {normal({s.B, s.H, s.T, s.d}, 1)},
         .f =
             [=](In x) { return narrow(relu_features(x[0], beside(R, x[0]), 1e-3, lengths), s.m); },
         .oracle =
             [=](In x) {
               const Array in(x[0]), r(R);
               return tabulate({s.B, s.H, s.T, s.m}, [&](const Coordinates& at) {
                 if (!s.lengths.empty() && at[2] >= s.lengths[size_t(at[0])]) return 0.0;
                 double sum = 0;
                 for (int64_t c = 0; c < s.d; ++c) sum += in(at[0], at[1], at[2], c) * r(at[3], c);
                 return std::max(0.0, sum / std::sqrt(std::sqrt(double(s.d)))) + 1e-3;
               });
             }});
  }
}

// Their largest exponent is a constant for the gradient.
TEST_CASE("softmax_features, exp_features: any sizes") {
  for (const FeatureSizes& s : kFeatureSizes) {
    const Tensor R = normal({s.m, s.d}, 9), lengths = lengths_of(s.lengths);
    const Tensor x = normal({s.B, s.H, s.T, s.d}, 1);
    for (FeatureSide side : {FeatureSide::queries, FeatureSide::keys}) {
      check_op({.name = join("softmax_features T ", s.T, " m ", s.m),
                .inputs = {x},
                .f =
                    [=](In in) {
                      return narrow(softmax_features(in[0], beside(R, in[0]), 1e-4, lengths, side),
                                    s.m);
                    },
                .grad_tolerance = 0});
    }
    check_op({.name = join("exp_features T ", s.T, " m ", s.m),
              .inputs = {x, normal({s.H, s.m, s.d}, 2), normal({s.H, s.m}, 3, Dtype::f32, -4, 2)},
              .f =
                  [=](In in) {
                    return exp_features(in[0], {}, {.weight = in[1], .bias = in[2], .content = {}},
                                        lengths);
                  },
              .tolerance = 1e-4,
              .grad_tolerance = 0});
  }
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
    Values maxima(20, -1e9);  // of each row's group
    for (int64_t row = 0; row < 20; ++row) {
      for (int64_t other = 0; other < 20; ++other) {
        bool together = side == FeatureSide::keys ? other / 5 == row / 5 : other == row;
        if (!together || other % 5 >= L[size_t(other / 10)]) continue;
        for (int64_t j = 0; j < 7; ++j)
          maxima[size_t(row)] = std::max(maxima[size_t(row)], projected(in, other, j));
      }
    }
    auto oracle = [&](const Values& from) {
      Values y;
      for (int64_t row = 0; row < 20; ++row) {
        double square = 0;
        for (int64_t c = 0; c < 4; ++c)
          square += from[size_t(row * 4 + c)] * from[size_t(row * 4 + c)];
        for (int64_t j = 0; j < 7; ++j) {
          double phi = std::exp(projected(from, row, j) - square / 4 - maxima[size_t(row)]) + 1e-2;
          y.push_back(row % 5 < L[size_t(row / 10)] ? phi / std::sqrt(7.0) : 0.0);
        }
      }
      return y;
    };
    auto f = [&](In v) {
      return narrow(softmax_features(v[0], beside(R, v[0]), 1e-2, lengths, side), 7);
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

TEST_CASE("exp_features: values by head, padding, both limits and gradients") {
  const int64_t G = 3, T = 6, d = 5, m = 7;
  const std::vector<int64_t> L = {6, 4};
  const Tensor lengths = lengths_of(L);
  // One bias is above the upper limit, one below the lower: these features are constant.
  Tensor bias = normal({G, m}, 4);
  bias.data<float>()[1] = 40;
  bias.data<float>()[m + 2] = -60;
  auto value = [=](const std::vector<Tensor>& x, bool with_content, int64_t row, int64_t j) {
    const int64_t g = row / T % G, at = (g * m + j) * d;
    double a = 0, u = 0;
    for (int64_t i = 0; i < d; ++i) {
      a += x[0].to_vector()[size_t(row * d + i)] * x[1].to_vector()[size_t(at + i)];
      if (with_content)
        u += x[3].to_vector()[size_t(row * d + i)] * x[4].to_vector()[size_t(at + i)];
    }
    const double sum = a / std::sqrt(std::sqrt(5.0)) + u + x[2].to_vector()[size_t(g * m + j)];
    return std::exp(std::clamp(sum, -20.0, 12.0));
  };
  for (bool with_content : {false, true}) {
    std::vector<Tensor> inputs = {normal({2, G, T, d}, 1), normal({G, m, d}, 2), bias};
    if (with_content) {
      inputs.push_back(normal({2, G, T, d}, 5));
      inputs.push_back(normal({G, m, d}, 6, Dtype::f32, 0, 0.3));
    }
    auto f = [=](In x) {
      const Tensor none;
      return exp_features(x[0], with_content ? x[3] : none,
                          {.weight = x[1], .bias = x[2], .content = with_content ? x[4] : none},
                          lengths);
    };
    auto oracle = [=](In x) {
      Values y;
      for (int64_t row = 0; row < 2 * G * T; ++row) {
        for (int64_t j = 0; j < m; ++j) {
          const bool visible = row % T < L[size_t(row / (G * T))];
          y.push_back(visible ? value(x, with_content, row, j) : 0.0);
        }
      }
      return y;
    };
    check_op({.name = join("exp_features, content ", with_content),
              .inputs = inputs,
              .f = f,
              .oracle = oracle,
              .grad_tolerance = 0});
    // exp(12) would hide the others in a check by scale.
    auto small = [=](In x) { return slice(f(x), 3, 2, m - 2); };
    check_op({.name = join("exp_features 2.., content ", with_content),
              .inputs = inputs,
              .f = small,
              .grad_tolerance = 2e-6});
    const Run made =
        run(f, to_dtype(inputs, Dtype::f64), cotangent(f(to_dtype(inputs, Dtype::f64))));
    const Values db = made.grads[2].to_vector();
    CHECK(db[1] == 0);
    CHECK(db[size_t(m + 2)] == 0);
    CHECK(db[0] != 0);
  }
}

TEST_CASE("exp_features: weights that do not fit are refused") {
  const Tensor x = normal({1, 2, 3, 4}, 1), A = normal({2, 5, 4}, 2), b = normal({2, 5}, 3);
  CHECK_REFUSES(exp_features(x, {}, {A, normal({3, 5}, 3), {}}, {}), "exp_features", "[2, m, 4]",
                "[3, 5]");
  CHECK_REFUSES(exp_features(x, x, {A, b, {}}, {}), "exp_features", "content");
  CHECK_REFUSES(exp_features(x, {}, {A, b, A}, {}), "exp_features", "content");
}

TEST_CASE("relu_features_step gives the features of one row") {
  const Tensor R = normal({7, 5}, 9), x = normal({2, 3, 6, 5}, 1);
  const Tensor full = relu_features(x, R, 1e-3, {});
  for (std::vector<int64_t> row : {std::vector<int64_t>{0, 5}, {3, 3}}) {
    CHECK(close(relu_features_step(rows_at(x, row), R, 1e-3), rows_at(full, row), 1e-7, 1e-6));
  }
}

}  // namespace brine::test
