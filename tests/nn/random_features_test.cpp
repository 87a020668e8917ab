// The random projections: orthogonal within a block, lengths and directions as they should be.
#include "nn/layers/random_features.h"

#include <cmath>

#include "tests/gradcheck.h"

using namespace brine;
using nn::feature_count;
using nn::random_projection;

namespace {

double dot(const std::vector<double>& R, int64_t d, int64_t a, int64_t b) {
  double sum = 0;
  for (int64_t c = 0; c < d; ++c) sum += R[size_t(a * d + c)] * R[size_t(b * d + c)];
  return sum;
}

}  // namespace

TEST_CASE("feature_count follows d ln d") {
  CHECK(feature_count(64, 4) == 66);
  CHECK(feature_count(64, 1) == 266);
  CHECK(feature_count(4, 1) == 5);
  CHECK(feature_count(6, 1) == 10);
  CHECK(feature_count(1, 1) == 1);
  CHECK_THROWS_AS(feature_count(64, 0), Error);
}

TEST_CASE("random_projection: rows of a block are orthogonal, of different blocks not") {
  const int64_t d = 8, m = 21;
  std::vector<double> R = random_projection(m, d, {.seed = 3}, Dtype::f64).to_vector();
  double across = 0;
  for (int64_t a = 0; a < m; ++a) {
    CHECK(dot(R, d, a, a) > 0.05);
    for (int64_t b = 0; b < a; ++b) {
      if (a / d == b / d)
        CHECK(std::abs(dot(R, d, a, b)) < 1e-12);
      else
        across = std::max(across, std::abs(dot(R, d, a, b)));
    }
  }
  CHECK(across > 1);
}

TEST_CASE("random_projection: entries are standard normal") {
  double sum = 0, square = 0, first = 0, n = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    std::vector<double> R = random_projection(10, 5, {.seed = seed}, Dtype::f64).to_vector();
    for (double x : R) sum += x, square += x * x, ++n;
    first += R[0];
  }
  CHECK(std::abs(sum / n) < 0.03);
  CHECK(square / n == doctest::Approx(1).epsilon(0.03));
  CHECK(std::abs(first / 400) < 0.2);
}

TEST_CASE("random_projection: repeatable; seeds and slices differ") {
  auto make = [](RandomSlice slice) { return random_projection(9, 4, slice, Dtype::f32); };
  const Tensor R = make({.seed = 1, .stream = 2, .first = 3});
  CHECK(test::same_bits(R, make({.seed = 1, .stream = 2, .first = 3})));
  CHECK_FALSE(test::same_bits(R, make({.seed = 2, .stream = 2, .first = 3})));
  CHECK_FALSE(test::same_bits(R, make({.seed = 1, .stream = 2, .first = 4})));
}
