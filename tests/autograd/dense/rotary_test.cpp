// Rotary positions against a rotation of each pair in complex numbers.
#include <complex>

#include "autograd/ops.h"
#include "tests/gradcheck.h"

using namespace brine;
using namespace brine::test;

namespace {

// x [B, H, T, d] rotated by exp(i (first + t) theta^(-2 i / (2 n))), pair by pair.
std::vector<double> oracle(const Tensor& x, int64_t n, double theta,
                           const std::vector<int64_t>& first) {
  const int64_t H = x.dim(1), T = x.dim(2), d = x.dim(3);
  std::vector<double> y = x.to_vector();
  for (int64_t row = 0; row < x.numel() / d; ++row) {
    const int64_t b = row / (H * T), t = row % T;
    for (int64_t i = 0; i < n; ++i) {
      const double angle = double(first[size_t(b)] + t) / std::pow(theta, double(i) / double(n));
      double &re = y[size_t(row * d + i)], &im = y[size_t(row * d + n + i)];
      const std::complex<double> rotated = std::complex<double>(re, im) * std::polar(1.0, angle);
      re = rotated.real();
      im = rotated.imag();
    }
  }
  return y;
}

}  // namespace

TEST_CASE("rotary turns every pair by its position, and leaves the features that have none") {
  for (int64_t d : {2, 6, 8, 33, 64, 65}) {
    for (int64_t n : {int64_t(1), d / 4, d / 2}) {
      if (n == 0) continue;
      for (const Tensor& first : {Tensor(), lengths_of({3, 1000})}) {
        check_op(
            {.name = join("rotary d ", d, " n ", n),
             .inputs = {normal({2, 3, 5, d}, 1)},
             .f = [=](In in) { return rotary(in[0], rotary_frequencies(2 * n, 500.0), first); },
             .oracle =
                 [=](In in) {
                   const bool given = first.defined();
                   return oracle(in[0], n, 500, {given ? 3 : 0, given ? 1000 : 0});
                 },
             .tolerance = 1e-6});
      }
    }
  }
}

TEST_CASE("rotary: products of q and k depend on the distance alone") {
  const Tensor f = rotary_frequencies(16, 10000);
  Tensor q = normal({1, 1, 1, 16}, 2, Dtype::f64), k = normal({1, 1, 1, 16}, 3, Dtype::f64);
  auto product = [&](int64_t a, int64_t b) {
    return dot(rotary(q, f, lengths_of({a})), rotary(k, f, lengths_of({b}))).item();
  };
  for (int64_t distance : {0, 1, 7, 300}) {
    for (int64_t b : {0, 5, 4000}) {
      CHECK(product(b + distance, b) == doctest::Approx(product(distance, 0)).epsilon(1e-9));
    }
  }
  CHECK(std::abs(product(7, 0) - product(0, 7)) > 1e-3);
}

TEST_CASE("rotary: a token at a time is the whole at once") {
  const Tensor f = rotary_frequencies(6, 100);
  Tensor x = normal({2, 3, 5, 8}, 5), whole = rotary(x, f);
  for (int64_t t = 0; t < 5; ++t) {
    CHECK(same_bits(rotary(x.slice(2, t, 1).contiguous(), f, lengths_of({t, t})),
                    whole.slice(2, t, 1).contiguous()));
  }
}

TEST_CASE("rotary refuses what it cannot turn") {
  Tensor x = normal({2, 3, 5, 8}, 4);
  CHECK_THROWS_WITH_AS(rotary_frequencies(5, 100),
                       "rotary: 5 features to rotate, wanted an even "
                       "number",
                       Error);
  CHECK_THROWS_WITH_AS(rotary_frequencies(4, 0), doctest::Contains("theta 0"), Error);
  CHECK_THROWS_WITH_AS(rotary(x, rotary_frequencies(10, 100)),
                       "rotary: frequencies must be f64 [n] with n at most 4", Error);
  CHECK_THROWS_WITH_AS(rotary(x, rotary_frequencies(8, 100), lengths_of({1})),
                       "rotary: first positions must be i64 [2]", Error);
  CHECK_THROWS_WITH_AS(rotary(normal({2, 5, 8}, 4), rotary_frequencies(8, 100)),
                       "rotary: [2, 5, 8] is not [B, H, T, d]", Error);
}
