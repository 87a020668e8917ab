// AdamW on the device, as on the CPU.
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("cuda: adamw over several steps") {
  for (int64_t n : {0, 1, 7, 2000, 10001}) {
    for (int64_t start : {0, 1}) {
      compare_both(join("adamw ", n, " from ", start), [&](const On& on, Dtype dtype) {
        Tensor w = on(normal({n + start}, 1, dtype)), m = on(normal({n + start}, 2, dtype));
        Tensor v = on(uniform({n + start}, 3, 0, 1, dtype)), g = on(normal({n + start}, 4, dtype));
        auto part = [&](const Tensor& t) { return t.slice(0, start, n); };
        AdamwStep step{0.01, 0.9, 0.95, 1e-6, 0.1, 0.3, 1};
        for (; step.step <= 3; ++step.step) {
          BRINE_CALL(w, adamw, part(w), part(m), part(v), part(g), step);
        }
        return std::vector{w, m, v, g};
      });
    }
  }
}
