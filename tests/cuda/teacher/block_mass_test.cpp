// The teacher's mass in blocks on the device, as on the CPU.
#include "autograd/ops_teacher.h"
#include "tests/block_cases.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

namespace {

void compare_mass(const BlockCase& c) {
  compare_both(join("block_mass, T ", c.T, ", d ", c.d, ", tile ", c.config.tile),
               [&](const On& on, Dtype dtype) {
                 return std::vector{block_mass(on(normal({c.B, c.H, c.T, c.d}, 3, dtype)),
                                               on(normal({c.B, c.G, c.T, c.d}, 4, dtype)), c.config,
                                               c.visible())};
               });
}

}  // namespace

TEST_CASE("cuda: block_mass of rows, levels, groups and padding") {
  for (const BlockCase& c : block_cases()) compare_mass(c);
  compare_mass({.H = 7, .G = 1, .T = 150, .d = 70, .config = {.block = 16, .tile = 16}});
  compare_mass({.B = 3,
                .H = 3,
                .G = 3,
                .T = 133,
                .config = {.block = 2, .tile = 2, .columns = 5},
                .lengths = {133, 0, 66}});
  compare_mass({.H = 2, .G = 1, .T = 300, .config = {.block = 128, .tile = 64}});
}

TEST_CASE("cuda: block_mass of sampled tiles, in 16 bits too") {
  const BlockCase c{.B = 2,
                    .H = 4,
                    .G = 2,
                    .T = 210,
                    .config = {.block = 8, .tile = 8, .columns = 6},
                    .lengths = {210, 130}};
  const std::vector<int32_t> places = {0, 2, 3, 17, 20};
  for (Dtype type : {Dtype::f32, Dtype::bf16}) {
    compare_both("block_mass of sampled tiles", [&](const On& on, Dtype dtype) {
      const Dtype stored = dtype == Dtype::f32 ? type : dtype;
      return std::vector{block_mass(on(normal({2, 4, 40, 6}, 3, dtype).to(stored)),
                                    on(normal({2, 2, 210, 6}, 4, dtype).to(stored)), c.config,
                                    c.visible(), Tensor::from(places, {5}))};
    });
  }
}
