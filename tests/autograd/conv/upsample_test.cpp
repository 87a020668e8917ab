// Upsampling against its definition, and its gradient.
#include "autograd/ops.h"
#include "tests/autograd/naive.h"
#include "tests/gradcheck.h"
#include "tests/refusals.h"

using namespace brine;
using namespace brine::test;

namespace {

struct Sizes {
  int64_t B, R, W, C, tokens, columns, stride, before, after;
  std::vector<int64_t> lengths = {};
};

void check_upsample(const Sizes& s) {
  const Upsampling conf{.tokens = s.tokens,
                        .columns = s.columns,
                        .stride = s.stride,
                        .halo_before = s.before,
                        .halo_after = s.after,
                        .lengths = test::lengths_of(s.lengths)};
  check_op({.name = join("upsample ", s.tokens, " ", s.columns, " stride ", s.stride),
            .inputs = {normal({s.B, s.R, s.W, s.C}, 1)},
            .f = [=](test::In x) { return upsample(x[0], conf); },
            .oracle =
                [=](test::In x) {
                  const test::Array in(x[0]);
                  const test::Coordinates shape{s.B, s.before + s.tokens + s.after, s.columns, s.C};
                  return test::tabulate(shape, [&](const test::Coordinates& c) {
                    const int64_t t = c[1] - s.before;
                    const int64_t length = s.lengths.empty() ? s.tokens : s.lengths[size_t(c[0])];
                    if (t < 0 || t >= std::min(length, s.tokens)) return 0.0;
                    return in(c[0], t / s.stride, c[2] * s.W / s.columns, c[3]);
                  });
                }});
}

}  // namespace

TEST_CASE("upsample repeats the nearest row and column; odd sizes, halos, lengths") {
  for (int64_t stride : {1, 2, 3}) {
    for (int64_t K : {5, 10, 13}) {
      check_upsample({2, (11 + stride - 1) / stride, 5, 3, 11, K, stride, 2, 1, {11, 4}});
    }
  }
  for (const Sizes& s : {Sizes{2, 4, 3, 5, 10, 8, 3, 2, 1}, Sizes{2, 4, 7, 5, 4, 5, 1, 0, 0},
                         Sizes{4, 4, 8, 1, 8, 32, 2, 0, 0, {0, 8, 5, 99}},
                         Sizes{3, 33, 4, 12, 129, 9, 4, 1, 0, {129, 0, 66}},
                         Sizes{1, 2, 30, 12, 40, 100, 20, 1, 1, {38}},  // rows of 1,200 numbers
                         Sizes{0, 4, 3, 5, 4, 3, 1, 0, 0}}) {
    check_upsample(s);
  }
}

TEST_CASE("upsample names what it refuses") {
  Tensor x = normal({2, 4, 5, 3}, 1);
  CHECK_REFUSES(upsample(x, {.tokens = 9, .columns = 5, .stride = 2}), "fewer than 5");
}
