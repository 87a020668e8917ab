// The mixed output, and the average that the estimate weighs.
#include "autograd/ops.h"
#include "tests/autograd/naive.h"
#include "tests/head_copies.h"
#include "tests/sparse_oracle.h"

namespace brine::test {

namespace {

// Sequences of T tokens; K columns for H heads, whose values G groups share.
struct MixCase {
  MaskCase m;
  int64_t G, d;
};

const std::vector<MixCase>& mix_cases() {
  static const std::vector<MixCase> all = {
      {{.B = 2, .H = 3, .T = 7, .K = 4, .causal = false, .lengths = {7, 0}}, 3, 5},
      {{.B = 1, .H = 1, .T = 1, .K = 1, .causal = false}, 1, 1},
      {{.B = 3, .H = 2, .T = 33, .K = 8, .causal = false, .lengths = {1, 33, 20}}, 2, 32},
      // Bands, wide rows; more columns than tokens.
      {{.B = 2, .H = 2, .T = 150, .K = 65, .causal = false, .lengths = {150, 65}}, 2, 70},
      {{.B = 1, .H = 2, .T = 20, .K = 130, .causal = false}, 2, 64},
      {{.B = 0, .H = 2, .T = 4, .K = 2, .causal = false}, 2, 3},
      {{.B = 2, .H = 2, .T = 0, .K = 2, .causal = false}, 2, 3},
      {{.B = 2, .H = 6, .T = 7, .K = 4, .causal = false, .lengths = {7, 3}}, 3, 5},
      {{.B = 3, .H = 6, .T = 11, .K = 32, .causal = false, .lengths = {11, 6, 0}}, 2, 3},
      {{.B = 2, .H = 6, .T = 70, .K = 9, .causal = false, .lengths = {70, 0}}, 2, 33},
      {{.B = 1, .H = 3, .T = 9, .K = 16, .causal = false}, 1, 64},
  };
  return all;
}

}  // namespace

TEST_CASE("mix_outputs: values and averages by their gates, padding apart, with the gradients") {
  for (const auto& [m, G, d] : mix_cases()) {
    for (bool causal : {true, false}) {
      const Visibility visible{.causal = causal, .lengths = lengths_of(m.lengths)};
      check_op({.name = join("mix_outputs G ", G, " d ", d, " ", m.name()),
                .inputs = {normal({m.B, m.H, m.T, d}, 1), normal({m.B, G, m.T, d}, 2),
                           normal({m.B, m.H, m.T, 2}, 3)},
                .f = [=](In x) { return mix_outputs(x[0], x[1], x[2], visible); },
                .oracle =
                    [=, m = m, d = d](In x) {
                      const Array c(x[0]), a(copied_heads(x[1], m.H)), gates(x[2]);
                      return tabulate({m.B, m.T, m.H * d}, [&](const Coordinates& at) {
                        const int64_t b = at[0], t = at[1], h = at[2] / d, i = at[2] % d;
                        if (t >= m.length(b)) return 0.0;
                        auto gate = [&](int64_t n) {
                          return 1 / (1 + std::exp(-gates(b, h, t, n)));
                        };
                        return gate(1) * gate(0) * c(b, h, t, i) + (1 - gate(1)) * a(b, h, t, i);
                      });
                    }});
    }
  }
}

namespace {

// The values v [B, H, T, d] averaged with the weights of the estimate, by the definition.
std::vector<double> naive_average(const Tensor& estimate, const Tensor& values, const MaskCase& m) {
  const int64_t K = m.K, d = values.dim(3);
  std::vector<double> e = estimate.to_vector(), v = values.to_vector(), y(v.size(), 0);
  for (int64_t b = 0; b < m.B; ++b) {
    int64_t L = m.length(b);
    std::vector<int64_t> column = columns_of_keys(L, K);
    for (int64_t h = 0; h < m.H; ++h) {
      std::vector<double> weight(static_cast<size_t>(L), 0);
      double sum = 0;
      for (int64_t j = 0; j < L; ++j) {
        for (int64_t t = 0; t < L; ++t) {
          weight[size_t(j)] += e[m.index(b, h, t, column[size_t(j)], K)] / double(L);
        }
        sum += weight[size_t(j)];
      }
      for (int64_t t = 0; t < L; ++t) {
        for (int64_t j = 0; j < L; ++j) {
          for (int64_t c = 0; c < d; ++c) {
            y[m.index(b, h, t, c, d)] += weight[size_t(j)] / sum * v[m.index(b, h, j, c, d)];
          }
        }
      }
    }
  }
  return y;
}

}  // namespace

TEST_CASE("estimate_average: the widened mean estimate, normalised, with its gradients") {
  for (const auto& [m, G, d] : mix_cases()) {
    check_op(
        {.name = join("estimate_average G ", G, " d ", d, " ", m.name()),
         .inputs = {uniform({m.B, m.H, m.T, m.K}, 1, 0.1, 1), normal({m.B, G, m.T, d}, 2)},
         .f = [m = m](In in) { return estimate_average(in[0], in[1], m.visible()); },
         .oracle = [m = m](In in) { return naive_average(in[0], copied_heads(in[1], m.H), m); },
         .grad_tolerance = m.T > 100 ? 1e-5 : 1e-6});
  }
  CHECK_THROWS_AS(estimate_average(normal({1, 1, 3, 2}, 1), normal({1, 1, 3, 2}, 1), {}), Error);
  const Tensor estimate = normal({1, 6, 3, 2}, 1), four = normal({1, 4, 3, 2}, 1);
  CHECK_THROWS_AS(estimate_average(estimate, four, {.causal = false}), Error);
}

TEST_CASE("mix_outputs refuses shapes that do not fit") {
  Tensor x = normal({1, 2, 9, 4}, 1), wrong = normal({1, 2, 8, 4}, 1);
  CHECK_THROWS_AS(mix_outputs(x, x, normal({1, 2, 9, 3}, 1), {}), Error);
  CHECK_THROWS_AS(mix_outputs(x, wrong, normal({1, 2, 9, 2}, 1), {}), Error);
  const Tensor six = normal({1, 6, 9, 4}, 1), four = normal({1, 4, 9, 4}, 1);
  CHECK_THROWS_AS(mix_outputs(six, four, normal({1, 6, 9, 2}, 1), {}), Error);
}

}  // namespace brine::test
