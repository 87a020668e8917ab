// The float formulas against the C library in double, swept over the exponents.
#include "tensor/base/math.h"

#include "tests/gradcheck.h"

using namespace brine;

namespace {

// Worst |f - exact| / max(|exact|, floor) over floats between low and high.
template <class F, class G>
double worst(F f, G exact, float low, float high, double floor) {
  double result = 0;
  for (uint64_t u = 0; u < 0x100000000ull; u += 4999) {
    const float x = std::bit_cast<float>(uint32_t(u));
    if (!(x >= low && x <= high) || (x != 0 && std::fabs(x) < 1e-37f)) continue;
    const double e = exact(double(x));
    const double error = std::abs(double(f(x)) - e) / std::max(std::abs(e), floor);
    result = std::isnan(error) ? INFINITY : std::max(result, error);
  }
  return result;
}

#define BRINE_PAIR(name) \
  [](float x) { return math::name(x); }, [](double x) { return math::name(x); }

}  // namespace

TEST_CASE("float formulas are as accurate as they say") {
  CHECK(worst(BRINE_PAIR(exp), -87.3f, 88.7f, 0) < 2e-7);
  CHECK(worst(BRINE_PAIR(exp_nonpositive), -87.3f, 0, 0) < 2e-7);
  CHECK(worst(BRINE_PAIR(log), 1.2e-38f, 3e38f, 1e-6) < 3e-7);
  CHECK(worst(BRINE_PAIR(erf), -20, 20, 1e-37) < 4e-7);
  CHECK(worst(BRINE_PAIR(sigmoid), -80, 80, 0) < 3e-7);
  CHECK(worst(BRINE_PAIR(silu), -80, 80, 1e-37) < 4e-7);
  CHECK(worst(BRINE_PAIR(silu_grad), -80, 80, 1) < 1.2e-6);
  CHECK(worst(BRINE_PAIR(gelu_tanh), -8, 8, 1e-6) < 2e-6);
  CHECK(worst(BRINE_PAIR(gelu_tanh_grad), -8, 8, 1) < 2e-6);
  CHECK(worst(BRINE_PAIR(gelu), -20, 20, 1e-6) < 2e-6);
  CHECK(worst(BRINE_PAIR(gelu_grad), -20, 20, 1) < 5e-7);
}

TEST_CASE("double formulas are the definitions") {
  for (double x = -8; x < 8; x += 0.37) {
    const double cdf = 0.5 * (1 + std::erf(x / std::sqrt(2.0)));
    CHECK(math::gelu(x) == doctest::Approx(x * cdf).epsilon(1e-9));
    const double slope = (math::gelu(x + 1e-5) - math::gelu(x - 1e-5)) / 2e-5;
    CHECK(math::gelu_grad(x) == doctest::Approx(slope).epsilon(1e-7));
  }
}

TEST_CASE("edges of the float formulas") {
  CHECK(math::exp(0.0f) == 1);
  CHECK(math::exp(-INFINITY) == 0);
  CHECK(math::exp(-100.0f) == 0);
  CHECK(math::exp(INFINITY) == INFINITY);
  CHECK(math::exp(100.0f) == INFINITY);
  CHECK(std::isnan(math::exp(NAN)));
  CHECK(math::exp_nonpositive(0.0f) == 1);
  CHECK(math::exp_nonpositive(-INFINITY) == 0);
  CHECK(std::isnan(math::exp_nonpositive(NAN)));
  CHECK(math::log(1.0f) == 0);
  CHECK(math::erf(0.0f) == 0);
  CHECK(math::erf(INFINITY) == 1);
  CHECK(math::erf(-INFINITY) == -1);
  CHECK(std::isnan(math::erf(NAN)));
  CHECK(math::gelu(0.0f) == 0);
  CHECK(math::gelu(30.0f) == 30);
  CHECK(math::gelu(-30.0f) == 0);
}

TEST_CASE("rounding half to even and the columns of a row") {
  CHECK(math::round_half_even(1, 2) == 0);
  CHECK(math::round_half_even(3, 2) == 2);
  CHECK(math::round_half_even(5, 2) == 2);
  CHECK(math::round_half_even(7, 3) == 2);
  CHECK(math::round_half_even(8, 3) == 3);
  for (int64_t w : {0, 1, 5, 64, 257}) {
    for (int64_t K : {1, 3, 64}) {
      CHECK(math::column_begin(0, w, K) == 0);
      CHECK(math::column_begin(K, w, K) == w);
      for (int64_t c = 0; c < K; ++c) {
        CHECK(math::column_begin(c, w, K) <= math::column_begin(c + 1, w, K));
        CHECK(math::column_begin(c, w, K) == int64_t(std::floor(double(c * w) / double(K) + 0.5)));
      }
    }
  }
}
