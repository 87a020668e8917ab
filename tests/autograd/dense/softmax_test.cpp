// The softmax under a mask, and its gradient.
#include "autograd/ops.h"
#include "tests/sparse_oracle.h"

namespace brine::test {

TEST_CASE("masked_softmax and its gradient; a row without entries is 0") {
  MaskCase m{.B = 2, .H = 2, .T = 21, .K = 4, .k = 2, .lengths = {21, 13}};
  Tensor estimate = uniform({m.B, m.H, m.T, m.K}, 41, 0, 1);
  FlatCsr csr =
      build_csr(select_columns(estimate, m.visible(), m.config()).selected, m.visible(), m.k);
  Tensor mask = csr_to_mask(csr);
  auto oracle = [=](In in) {
    std::vector<double> x = in[0].to_vector(), keep = in[1].to_vector(), y(x.size(), 0);
    for (size_t r = 0; r < x.size(); r += size_t(m.T)) {
      double sum = 0;
      for (size_t j = r; j < r + size_t(m.T); ++j) {
        if (keep[j] != 0) sum += y[j] = std::exp(0.37 * x[j]);
      }
      for (size_t j = r; j < r + size_t(m.T) && sum > 0; ++j) y[j] /= sum;
    }
    return y;
  };
  check_op({.name = "masked_softmax",
            .inputs = {normal({m.B, m.H, m.T, m.T}, 5, Dtype::f32, 0, 4), mask},
            .f = [](In in) { return masked_softmax(in[0], in[1], 0.37); },
            .oracle = oracle});
  // Scores far below zero must not vanish because of a large hidden one.
  Tensor x = Tensor::from(std::vector<float>{900, -700, -701}, {1, 3});
  Tensor keep = Tensor::from(std::vector<uint8_t>{0, 1, 1}, {1, 3});
  std::vector<double> y = masked_softmax(x, keep).to_vector();
  CHECK(y[0] == 0);
  CHECK(y[1] == doctest::Approx(1 / (1 + std::exp(-1))));
  CHECK_THROWS_AS(masked_softmax(normal({1, 2, 9, 4}, 1), mask), Error);
}

}  // namespace brine::test
