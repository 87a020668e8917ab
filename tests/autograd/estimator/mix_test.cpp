// The mixed output against composed ops, and the average that the estimate weighs.
#include "autograd/ops.h"
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

TEST_CASE("estimate_average: the widened mean estimate, normalised, with its gradients") {
  for (int64_t K : {4, 8, 32}) {
    MaskCase m{.B = 3, .H = 2, .T = 11, .K = K, .causal = false, .lengths = {11, 6, 0}};
    auto oracle = [=](const std::vector<Tensor>& in) {
      std::vector<double> e = in[0].to_vector(), v = in[1].to_vector(), y(v.size(), 0);
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
    };
    check_op({.name = join("estimate_average K ", K),
              .inputs = {uniform({m.B, m.H, m.T, K}, 1, 0.1, 1), normal({m.B, m.H, m.T, 3}, 2)},
              .f =
                  [=](const std::vector<Tensor>& in) {
                    return estimate_average(in[0], in[1], m.visible());
                  },
              .oracle = oracle});
  }
  CHECK_THROWS_AS(estimate_average(normal({1, 1, 3, 2}, 1), normal({1, 1, 3, 2}, 1), {}), Error);
}

TEST_CASE("mix_outputs refuses shapes that do not fit") {
  Tensor x = normal({1, 2, 9, 4}, 1), wrong = normal({1, 2, 8, 4}, 1);
  CHECK_THROWS_AS(mix_outputs(x, x, normal({1, 2, 9, 3}, 1), {}), Error);
  CHECK_THROWS_AS(mix_outputs(x, wrong, normal({1, 2, 9, 2}, 1), {}), Error);
}

}  // namespace brine::test
