// Gradients of upsampling.
#include "autograd/ops.h"
#include "tests/gradcheck.h"

using namespace brine;
using brine::test::check_op;
using brine::test::normal;

TEST_CASE("upsample: odd sizes, halos, lengths") {
  Tensor lengths = Tensor::from(std::vector<int64_t>{7, 3}, {2});
  Upsampling conf{.tokens = 7,
                  .columns = 9,
                  .stride = 2,
                  .halo_before = 1,
                  .halo_after = 2,
                  .lengths = lengths};
  check_op({.name = "upsample", .inputs = {normal({2, 4, 4, 3}, 1)}, .f = [=](const auto& x) {
              return upsample(x[0], conf);
            }});
}

TEST_CASE("upsample names what it refuses") {
  Tensor x = normal({2, 4, 5, 3}, 1);
  CHECK_THROWS_WITH_AS(upsample(x, {.tokens = 9, .columns = 5, .stride = 2}),
                       doctest::Contains("fewer than 5"), Error);
}
