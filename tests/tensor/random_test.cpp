// Philox against the known answers of its authors (Salmon et al. 2011), and the streams on top.
#include "tensor/base/random.h"

#include "tests/gradcheck.h"

using namespace brine;
using namespace brine::test;

namespace {

bool equals(Philox p, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return p.v[0] == a && p.v[1] == b && p.v[2] == c && p.v[3] == d;
}

}  // namespace

TEST_CASE("Philox4x32-10 gives the published words") {
  CHECK(equals(philox(0, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  const uint64_t ones = ~uint64_t(0);
  CHECK(equals(philox(ones, ones, ones), 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  // The digits of pi: counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0.
  CHECK(equals(philox(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88), 0xd16cfe09,
               0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST_CASE("uniform numbers are strictly inside (0, 1) and fill it evenly") {
  CHECK(uniform_of(0) > 0);
  CHECK(uniform_of(0xffffffff) < 1);
  const RandomSlice slice{1, 2, 3};
  const int n = 200000;
  double sum = 0, squares = 0;
  std::vector<int> bins(16, 0);
  for (int i = 0; i < n; ++i) {
    const double u = slice.uniform(uint64_t(i));
    sum += u;
    squares += u * u;
    ++bins[size_t(u * 16)];
  }
  CHECK(sum / n == doctest::Approx(0.5).epsilon(0.01));
  CHECK(squares / n == doctest::Approx(1.0 / 3).epsilon(0.01));
  for (int count : bins) CHECK(std::abs(count - n / 16) < 5 * std::sqrt(n / 16.0));
}

TEST_CASE("normal numbers have the moments of the normal distribution") {
  const RandomSlice slice{5, 6, 7};
  const int n = 200000;
  double m1 = 0, m2 = 0, m4 = 0, lag = 0, last = 0;
  for (int i = 0; i < n; ++i) {
    const double x = slice.normal(uint64_t(i));
    m1 += x;
    m2 += x * x;
    m4 += x * x * x * x;
    lag += x * last;
    last = x;
  }
  CHECK(std::abs(m1 / n) < 0.01);
  CHECK(m2 / n == doctest::Approx(1).epsilon(0.02));
  CHECK(m4 / n == doctest::Approx(3).epsilon(0.05));
  CHECK(std::abs(lag / n) < 0.01);
}

TEST_CASE("a stream returns slices that do not overlap, and can be reset") {
  RandomStream stream{9, 1, 0};
  const RandomStream start = stream;
  const RandomSlice a = stream.take(100), b = stream.take(100);
  CHECK(b.first == a.first + 100);
  CHECK(stream.counter == 200);
  stream = start;
  const RandomSlice again = stream.take(100);
  for (uint64_t i = 0; i < 100; ++i) {
    CHECK(again.word(i) == a.word(i));
    CHECK(a.normal(i) != b.normal(i));
  }
  CHECK(RandomSlice{9, 2, 0}.word(0) != a.word(0));
  CHECK(RandomSlice{8, 1, 0}.word(0) != a.word(0));
}
