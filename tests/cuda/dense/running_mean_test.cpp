// Running means on the device, as on the CPU.
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("cuda: running_mean and its gradient") {
  for (const Shape& shape :
       {Shape{1, 1}, Shape{7, 3}, Shape{2, 64, 5}, Shape{3, 65, 1}, Shape{0, 4, 4}, Shape{2, 0, 4},
        Shape{2, 3, 130, 33}, Shape{1, 64 * 9 + 1, 6}, Shape{2, 64 * 70 + 1, 2}}) {
    compare_both(join("running_mean ", shape), [&](const On& on, Dtype dtype) {
      Tensor x = on(normal(shape, 1, dtype, 0.2)), dy = on(normal(shape, 2, dtype));
      Tensor y = Tensor::like(x), dx = Tensor::like(x);
      BRINE_CALL(x, running_mean, y, x);
      BRINE_CALL(x, running_mean_backward, dx, dy);
      return std::vector{y, dx};
    });
  }
}

TEST_CASE("cuda: running_mean_step") {
  for (bool moved : {false, true}) {
    compare_both("running_mean_step", [&](const On& on, Dtype dtype) {
      Tensor sums = on(normal({3, 2, 150}, 1, Dtype::f64)),
             v = on(normal({3, 2, 1, 150}, 2, dtype));
      Tensor y = Tensor::empty({3, 2, 150}, dtype, v.device()), counts = numbers({1, 7, 100});
      BRINE_CALL(y, running_mean_step, y, sums, v, moved ? on(counts) : counts);
      return std::vector{y, sums};
    });
  }
}
