// Sums and counts of all elements on the device, as on the CPU.
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("cuda: sums of all elements and of columns, and counts of what is not finite") {
  compare_all(table::reduce_cases());
}

TEST_CASE("cuda: more elements than a piece each for all blocks") {
  const int64_t n = 1024 * 8192 + 5;
  compare("sum_all", 0, [&](const On& on) {
    Tensor x = on(ids({n}, 1, 7, Dtype::f32)), y = Tensor::empty({1}, Dtype::f32, x.device());
    BRINE_CALL(x, sum_all, y, x);
    return std::vector{y};
  });
}
