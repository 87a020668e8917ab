// The teacher's mass in blocks against its attention map.
#include <cmath>

#include "tests/block_cases.h"

namespace brine::test {

TEST_CASE("block_mass: sums of the map over the complete blocks of each row's first level") {
  for (const BlockCase& c : block_cases()) {
    CAPTURE(c.T);
    const Tensor q = normal({c.B, c.H, c.T, c.d}, 3, Dtype::f64),
                 k = normal({c.B, c.G, c.T, c.d}, 4, Dtype::f64);
    const Tensor map = softmax(group_matmul(q, k, true), 1 / std::sqrt(double(c.d)), c.visible());
    const Tensor mass = block_mass(q, k, c.config, c.visible());
    double worst = 0;
    for (int64_t r = 0; r < c.B * c.H * c.T; ++r) {
      const int64_t t = r % c.T, row_block = t / c.config.block, z = c.config.level(row_block);
      const bool valid = t < c.length(r / c.T / c.H);
      for (int64_t n = 0; n < mass.dim(3); ++n) {
        double sum = 0;
        const int64_t keys = c.config.block << z;
        for (int64_t j = n * keys; valid && n < row_block >> z && j < (n + 1) * keys; ++j) {
          sum += map.data<double>()[r * c.T + j];
        }
        worst = std::max(worst, std::fabs(sum - mass.data<double>()[r * mass.dim(3) + n]));
      }
    }
    CHECK(worst < 1e-12);
    // Rows of chosen tiles alone.
    const int64_t R = c.config.tile;
    if (!c.lengths.empty() || c.T < 5 * R) continue;
    const Tensor some = block_mass(q.slice(2, 4 * R, R).contiguous(), k, c.config, c.visible(),
                                   Tensor::from(std::vector<int32_t>{4}, {1}));
    CHECK(some.to_vector() == mass.slice(2, 4 * R, R).to_vector());
  }
}

}  // namespace brine::test
