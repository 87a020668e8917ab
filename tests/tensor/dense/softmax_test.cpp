// Softmax of special scores; others are in tests/ops/op_table.h.
#include "tensor/kernels/dense.h"
#include "tests/ops/op_table.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("softmax of ties, huge scores, another scale's sign, more keys than rows") {
  const Visibility all{.causal = false, .lengths = {}};
  Tensor ties = Tensor::full({1, 1, 2, 33}, 1e30), y = Tensor::like(ties);
  BRINE_CALL(y, softmax, y, ties, 1.0, all);
  CHECK(close(y.to_vector(), std::vector<double>(66, 1.0 / 33), 0, 1e-6));
  Tensor wide = normal({1, 2, 3, 100}, 2, Dtype::f32, 0, 3000);
  auto all_keys = [](int64_t, int64_t) { return int64_t(100); };
  for (double scale : {1.0, -1.0, 1e-3}) {
    Tensor z = Tensor::like(wide);
    BRINE_CALL(z, softmax, z, wide, scale, all);
    CHECK(close(z.to_vector(), table::softmax_rows({wide}, scale, all_keys), 1e-30, 1e-3));
  }
}

TEST_CASE("a visible NaN spoils its row and no other; minus infinity weighs nothing") {
  const Visibility all{.causal = false, .lengths = {}};
  Tensor x = normal({1, 1, 3, 40}, 3), y = Tensor::like(x);
  x.data<float>()[41] = NAN;
  x.data<float>()[5] = -INFINITY;
  BRINE_CALL(y, softmax, y, x, 1.0, all);
  const auto v = y.to_vector();
  for (size_t i = 0; i < v.size(); ++i) CHECK(std::isnan(v[i]) == (i / 40 == 1));
  CHECK(v[5] == 0);
  // Nothing reads a hidden score.
  Tensor square = Tensor::full({1, 1, 3, 3}, NAN), z = Tensor::like(square);
  for (size_t i : {0, 3, 4, 6, 7, 8}) square.data<float>()[i] = 2;
  BRINE_CALL(z, softmax, z, square, 1.0, {.causal = true, .lengths = {}});
  CHECK(close(z.to_vector(), {1, 0, 0, .5, .5, 0, 1 / 3., 1 / 3., 1 / 3.}, 0, 1e-6));
}
