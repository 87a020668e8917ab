// LayerNorm of nearly constant rows and gradients of many rows on the device, as on the CPU; others
// are in tests/ops/op_table.h.
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

// A rounding of the mean is 100 times the tolerance after the division by the spread.
TEST_CASE("cuda: layernorm of rows that are nearly constant") {
  for (const Shape& shape : {Shape{9, 64}, Shape{5, 700}, Shape{2, 1030}}) {
    compare_both(join("layernorm ", shape), [&](const On& on, Dtype dtype) {
      const Shape channels{shape[1]};
      const Tensor x = on(normal(shape, 1, Dtype::f32, 300, 1e-3).to(dtype));
      const Tensor w = on(normal(channels, 2, dtype)), b = on(normal(channels, 3, dtype));
      Tensor y = Tensor::like(x), mean = Tensor::empty({shape[0]}, dtype, x.device());
      Tensor rstd = Tensor::like(mean);
      BRINE_CALL(x, norm, y, {}, mean, rstd, x, {}, w, b, 1e-5);
      return std::vector{y, rstd};
    });
  }
}

TEST_CASE("cuda: gradients of norms of more rows than a grid has in y") {
  const Shape shape{65536 * 64 + 1, 2}, channels{2};
  compare_both("many rows", [&](const On& on, Dtype dtype) {
    if (dtype != Dtype::f32) return std::vector<Tensor>{};  // the launch is the same
    Tensor x = on(normal(shape, 1, dtype)), w = on(normal(channels, 2, dtype));
    Tensor dy = on(normal(shape, 4, dtype)), none;
    Tensor mean = on(normal({shape[0]}, 5, dtype)), rstd = on(normal({shape[0]}, 6, dtype));
    Tensor dw = on(normal(channels, 7, dtype)), db = on(normal(channels, 8, dtype));
    Tensor rms_dw = on(normal(channels, 9, dtype));
    BRINE_CALL(x, norm_backward, none, dw, db, dy, none, x, w, mean, rstd);
    BRINE_CALL(x, norm_backward, none, rms_dw, none, dy, none, x, w, none, rstd);
    return std::vector{dw, db, rms_dw};
  });
}
