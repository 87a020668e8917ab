// Running means on the device, as on the CPU.
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

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
