// Orthogonal random projections, from counter-based random numbers: one seed gives one matrix on
// every machine.
#include "nn/layers/random_features.h"

#include <cmath>
#include <vector>

namespace brine::nn {
namespace {

int64_t blocks_of(int64_t m, int64_t d) { return (m + d - 1) / d; }

// The columns of an orthogonal [d, d], uniformly distributed: Q of a Gaussian matrix whose R has a
// positive diagonal, by Gram-Schmidt. Its second pass removes what the rounding of the first left.
std::vector<double> orthogonal(int64_t d, const RandomSlice& slice, uint64_t first) {
  std::vector<double> columns(size_t(d * d));
  for (int64_t c = 0; c < d; ++c) {
    double* x = columns.data() + c * d;
    for (int64_t r = 0; r < d; ++r) x[r] = slice.normal(first + uint64_t(r * d + c));
    auto dot = [&](const double* y) {
      double sum = 0;
      for (int64_t r = 0; r < d; ++r) sum += x[r] * y[r];
      return sum;
    };
    for (int pass = 0; pass < 2; ++pass) {
      for (const double* y = columns.data(); y < x; y += d) {
        const double along = dot(y);
        for (int64_t r = 0; r < d; ++r) x[r] -= along * y[r];
      }
    }
    const double length = std::sqrt(dot(x));
    for (int64_t r = 0; r < d; ++r) x[r] /= length;
  }
  return columns;
}

}  // namespace

int64_t feature_count(int64_t d, double divisor) {
  check(d > 0 && divisor > 0, "feature_count: head size ", d, " and divisor ", divisor,
        " must be above 0");
  return std::max<int64_t>(1, int64_t(std::floor(double(d) * std::log(double(d)) / divisor)));
}

Tensor random_projection(int64_t m, int64_t d, const RandomSlice& slice, Dtype dtype) {
  check(m > 0 && d > 0, "random_projection: ", m, " features of ", d, " numbers");
  Tensor R = Tensor::empty({m, d}, Dtype::f64);
  const uint64_t lengths = uint64_t(blocks_of(m, d) * d * d);
  for (int64_t r = 0; r < m;) {
    const std::vector<double> Q = orthogonal(d, slice, uint64_t(r / d * d * d));
    for (int64_t i = 0; i < d && r < m; ++i, ++r) {
      double square = 0;
      for (int64_t c = 0; c < d; ++c) {
        const double x = slice.normal(lengths + uint64_t(r * d + c));
        square += x * x;
      }
      double* row = R.data<double>() + r * d;
      for (int64_t c = 0; c < d; ++c) row[c] = Q[size_t(c * d + i)] * std::sqrt(square);
    }
  }
  return R.to(dtype);
}

Tensor random_projection(Init& init, int64_t m, int64_t d, Dtype dtype) {
  const int64_t draws = blocks_of(m, d) * d * d + m * d;
  return random_projection(m, d, init.random.take(uint64_t(draws)), dtype);
}

RandomProjection::RandomProjection(Init& init, int64_t m, int64_t d)
    : projection(buffer("projection", random_projection(init, m, d, init.dtype).to(init.device))) {}

}  // namespace brine::nn
