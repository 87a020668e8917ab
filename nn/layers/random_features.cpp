// Orthogonal random projections, from counter-based random numbers: one seed gives one matrix on
// every machine.
// As in gemm_f64.cpp: the linker keeps one copy of Eigen's functions.
#define EIGEN_DONT_PARALLELIZE
#include "nn/layers/random_features.h"

#include <Eigen/QR>
#include <cmath>

namespace brine::nn {
namespace {

int64_t blocks_of(int64_t m, int64_t d) { return (m + d - 1) / d; }

// An orthogonal [d, d], uniformly distributed: Q of a Gaussian matrix whose R has a positive
// diagonal (without that, the first entry of every column would never be positive).
Eigen::MatrixXd orthogonal(int64_t d, const RandomSlice& slice, uint64_t first) {
  Eigen::MatrixXd gauss(d, d);
  for (int64_t r = 0; r < d; ++r) {
    for (int64_t c = 0; c < d; ++c) gauss(r, c) = slice.normal(first + uint64_t(r * d + c));
  }
  Eigen::HouseholderQR<Eigen::MatrixXd> qr(gauss);
  Eigen::MatrixXd Q = qr.householderQ();
  for (int64_t c = 0; c < d; ++c) {
    if (qr.matrixQR()(c, c) < 0) Q.col(c) = -Q.col(c);
  }
  return Q;
}

}  // namespace

int64_t feature_count(int64_t d, double divisor) {
  check(d > 0 && divisor > 0, "feature_count: head size ", d, " and divisor ", divisor,
        " must be above 0");
  return std::max<int64_t>(1, int64_t(std::floor(double(d) * std::log(double(d)) / divisor)));
}

int64_t random_projection_draws(int64_t m, int64_t d) { return blocks_of(m, d) * d * d + m * d; }

Tensor random_projection(int64_t m, int64_t d, const RandomSlice& slice, uint64_t draw,
                         Dtype dtype) {
  check(m > 0 && d > 0, "random_projection: ", m, " features of ", d, " numbers");
  RandomSlice draw_slice = slice;
  draw_slice.stream += draw << 32;
  Tensor R = Tensor::empty({m, d}, Dtype::f64);
  const uint64_t lengths = uint64_t(blocks_of(m, d) * d * d);
  for (int64_t r = 0; r < m;) {
    const Eigen::MatrixXd Q = orthogonal(d, draw_slice, uint64_t(r / d * d * d));
    for (int64_t i = 0; i < d && r < m; ++i, ++r) {
      double square = 0;
      for (int64_t c = 0; c < d; ++c) {
        const double x = draw_slice.normal(lengths + uint64_t(r * d + c));
        square += x * x;
      }
      double* row = R.data<double>() + r * d;
      for (int64_t c = 0; c < d; ++c) row[c] = Q(i, c) * std::sqrt(square);
    }
  }
  return R.to(dtype);
}

RandomProjection::RandomProjection(Init& init, int64_t m, int64_t d)
    : slice(init.random.take(uint64_t(random_projection_draws(m, d)))),
      projection(buffer("projection", random_projection(m, d, slice, 0, init.dtype))) {}

void RandomProjection::redraw_when_due(int64_t steps_done, int64_t interval) {
  if (interval <= 0 || steps_done <= 0 || steps_done % interval != 0) return;
  const Tensor& R = projection.value;
  projection.value =
      random_projection(R.dim(0), R.dim(1), slice, uint64_t(steps_done / interval), R.dtype())
          .to(R.device());
}

}  // namespace brine::nn
