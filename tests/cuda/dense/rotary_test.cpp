// Rotary positions on the device, as on the CPU.
#include "autograd/ops.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("cuda: rotary, whole heads and parts of them, and back") {
  const Tensor first = Tensor::from(std::vector<int64_t>{3, 2000}, {2});
  for (int64_t d : {2, 8, 33, 64}) {
    for (int64_t features : {int64_t(2), d / 2 * 2}) {
      const Tensor frequencies = rotary_frequencies(features, 1e4);
      for (const Tensor& start : {Tensor(), first}) {
        compare_both(join("rotary ", d, " ", features), [&](const On& on, Dtype dtype) {
          Tensor x = on(normal({2, 3, 5, d}, 1, dtype)), y = Tensor::like(x), z = Tensor::like(x);
          BRINE_CALL(x, rotary, y, x, start, frequencies, 1.0);
          BRINE_CALL(x, rotary, z, y, start, frequencies, -1.0);
          return std::vector{y, z};
        });
      }
    }
  }
}
