// The estimate of a table's columns on the device, as on the CPU.
#include "autograd/ops_estimator.h"
#include "tensor/kernels/estimator.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("cuda: the estimate of a table's columns") {
  struct Sizes {
    int64_t B, H, G, T, d, m, K, units;
    std::vector<int64_t> lengths;
    int64_t first = 0;
  };
  for (const Sizes& s : {Sizes{1, 1, 1, 1, 1, 1, 1, 0, {}}, Sizes{2, 2, 2, 7, 5, 4, 3, 0, {0, 6}},
                         Sizes{2, 4, 2, 130, 20, 16, 16, 2, {130, 71}},
                         Sizes{1, 4, 2, 70, 20, 16, 16, 2, {}, 201}}) {
    for (bool causal : {false, true}) {
      if (s.first && !causal) continue;
      const Tensor lengths = s.lengths.empty() ? Tensor() : Tensor::from(s.lengths, Shape{s.B});
      compare_both(join("table_estimate T=", s.T, causal), [&](const On& on, Dtype dtype) {
        Tensor y = on(normal({s.B, s.H, s.T, s.K}, 1, dtype));
        BRINE_CALL(y, table_estimate, y, on(normal({s.H, s.K}, 2, dtype)),
                   on(uniform({s.H}, 3, 0.5, 1.5, dtype)),
                   on(uniform({s.B, s.H, s.T, s.m}, 4, 0.1, 1, dtype)),
                   on(uniform({s.B, s.G, s.first + s.T, s.m}, 5, 0.1, 1, dtype)),
                   on(normal({s.H}, 8, dtype)), on(normal({s.B, s.H, s.T, s.d}, 6, dtype)),
                   on(normal({s.B, s.G, s.first + s.T, s.d}, 7, dtype)),
                   Visibility{causal, on(lengths), s.first}, ColumnGrid(1, s.units), 1e-3);
        return std::vector<Tensor>{y};
      });
    }
  }
}
