// The mixed output against composed ops, and the average that the estimate weighs.
#include "autograd/ops.h"
#include "tests/head_copies.h"
#include "tests/sparse_oracle.h"

namespace brine::test {

TEST_CASE("mix_outputs equals the composed ops, padding apart") {
  for (std::vector<int64_t> lengths : {std::vector<int64_t>{}, {7, 0}, {4, 7}}) {
    MaskCase m{.B = 2, .H = 3, .T = 7, .lengths = lengths};
    Shape shape{m.B, m.H, m.T, 5};
    std::vector<Tensor> in = {normal(shape, 1), normal(shape, 2), normal({m.B, m.H, m.T, 2}, 3)};
    Visibility visible = m.visible();
    auto fused = [=](const std::vector<Tensor>& x) {
      return mix_outputs(x[0], x[1], x[2], visible);
    };
    auto composed = [=](const std::vector<Tensor>& x) {
      Tensor gates = sigmoid(x[2]), one = Tensor::full({m.B, m.H, m.T}, 1, x[0].dtype());
      auto gate = [&](int64_t i) { return reshape(slice(gates, 3, i, 1), {m.B, m.H, m.T}); };
      Tensor kept = scale_rows(scale_rows(x[0], gate(0)), gate(1));
      Tensor y = merge_heads(add(kept, scale_rows(x[1], sub(one, gate(1)))));
      return visible.lengths.defined() ? zero_padding(y, visible.lengths) : y;
    };
    check_op({.name = "mix_outputs",
              .inputs = in,
              .f = fused,
              .oracle = [=](const std::vector<Tensor>& x) { return composed(x).to_vector(); }});
    Tensor dy = normal({m.B, m.T, m.H * 5}, 6, Dtype::f64);
    Run a = run(fused, to_dtype(in, Dtype::f64), dy),
        b = run(composed, to_dtype(in, Dtype::f64), dy);
    for (size_t i = 0; i < 3; ++i) CHECK(close(a.grads[i], b.grads[i], 1e-13, 1e-12));
  }
}

TEST_CASE("mix_outputs: an average of groups of heads is that of every head of the group") {
  const MaskCase m{.B = 2, .H = 6, .T = 7, .lengths = {4, 7}};
  for (int64_t G : {1, 2, 3}) {
    check_op({.name = join("mix_outputs G ", G),
              .inputs = {normal({2, 6, 7, 5}, 1), normal({2, G, 7, 5}, 2), normal({2, 6, 7, 2}, 3)},
              .f = [=](const auto& x) { return mix_outputs(x[0], x[1], x[2], m.visible()); },
              .oracle =
                  [=](const auto& x) {
                    const Tensor average = copied_heads(x[1], m.H);
                    std::vector<double> c = x[0].to_vector(), a = average.to_vector();
                    std::vector<double> gates = x[2].to_vector(), y(c.size(), 0);
                    for (int64_t b = 0; b < m.B; ++b) {
                      for (int64_t h = 0; h < m.H; ++h) {
                        for (int64_t t = 0; t < m.length(b); ++t) {
                          auto gate = [&](int64_t i) {
                            return 1 / (1 + std::exp(-gates[m.index(b, h, t, i, 2)]));
                          };
                          for (int64_t i = 0; i < 5; ++i) {
                            const size_t at = m.index(b, h, t, i, 5);
                            y[size_t(((b * m.T + t) * m.H + h) * 5 + i)] =
                                gate(1) * gate(0) * c[at] + (1 - gate(1)) * a[at];
                          }
                        }
                      }
                    }
                    return y;
                  }});
  }
}

namespace {

// The values v [B, H, T, 3] averaged with the weights of the estimate, by the definition.
std::vector<double> naive_average(const Tensor& estimate, const Tensor& values, const MaskCase& m) {
  const int64_t K = m.K;
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
          for (int64_t c = 0; c < 3; ++c) {
            y[m.index(b, h, t, c, 3)] += weight[size_t(j)] / sum * v[m.index(b, h, j, c, 3)];
          }
        }
      }
    }
  }
  return y;
}

void check_average(const MaskCase& m, int64_t G) {
  check_op({.name = join("estimate_average K ", m.K, " G ", G),
            .inputs = {uniform({m.B, m.H, m.T, m.K}, 1, 0.1, 1), normal({m.B, G, m.T, 3}, 2)},
            .f = [=](const auto& in) { return estimate_average(in[0], in[1], m.visible()); },
            .oracle =
                [=](const auto& in) { return naive_average(in[0], copied_heads(in[1], m.H), m); }});
}

}  // namespace

TEST_CASE("estimate_average: the widened mean estimate, normalised, with its gradients") {
  for (int64_t K : {4, 8, 32}) {
    check_average({.B = 3, .H = 2, .T = 11, .K = K, .causal = false, .lengths = {11, 6, 0}}, 2);
  }
  CHECK_THROWS_AS(estimate_average(normal({1, 1, 3, 2}, 1), normal({1, 1, 3, 2}, 1), {}), Error);
}

TEST_CASE("estimate_average: every head weighs the values of its group") {
  for (int64_t G : {1, 2, 3}) {
    check_average({.B = 3, .H = 6, .T = 11, .K = 8, .causal = false, .lengths = {11, 6, 0}}, G);
  }
  const Visibility visible{.causal = false};
  const Tensor estimate = normal({1, 6, 3, 2}, 1), four = normal({1, 4, 3, 2}, 1);
  CHECK_THROWS_AS(estimate_average(estimate, four, visible), Error);
}

TEST_CASE("mix_outputs refuses shapes that do not fit") {
  Tensor x = normal({1, 2, 9, 4}, 1), wrong = normal({1, 2, 8, 4}, 1);
  CHECK_THROWS_AS(mix_outputs(x, x, normal({1, 2, 9, 3}, 1), {}), Error);
  CHECK_THROWS_AS(mix_outputs(x, wrong, normal({1, 2, 9, 2}, 1), {}), Error);
  const Tensor six = normal({1, 6, 9, 4}, 1), four = normal({1, 4, 9, 4}, 1);
  CHECK_THROWS_AS(mix_outputs(six, four, normal({1, 6, 9, 2}, 1), {}), Error);
}

}  // namespace brine::test
