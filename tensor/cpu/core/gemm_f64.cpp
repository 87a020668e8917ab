// The matrix product in f64, by Eigen. Compiled once, not for each instruction set: the linker
// would mix Eigen's functions of both.
#define EIGEN_DONT_PARALLELIZE  // the callers cut the product, by its sizes alone
#include "tensor/cpu/core/gemm_f64.h"

#include <Eigen/Core>
#include <utility>

namespace brine {
namespace {

using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using RowStep = Eigen::OuterStride<>;
using AnyStep = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;

// Calls use(x) with the matrix as Eigen's kernels read it, row by row or column by column in
// memory. A matrix that is neither is copied.
template <class Use>
void with_dense(Strided<const double> x, int64_t rows, int64_t columns, const Use& use) {
  const bool flip = x.row < x.column;
  if (flip) {
    std::swap(rows, columns);
    std::swap(x.row, x.column);
  }
  Rows copy;
  if (x.column != 1) {
    copy = Eigen::Map<const Rows, 0, AnyStep>(x.data, rows, columns, AnyStep(x.row, x.column));
    x = {copy.data(), columns, 1};
  }
  const Eigen::Map<const Rows, 0, RowStep> dense(x.data, rows, columns, RowStep(x.row));
  flip ? use(dense.transpose()) : use(dense);
}

}  // namespace

void gemm_f64(int64_t M, int64_t N, int64_t K, double alpha, Strided<const double> a,
              Strided<const double> b, double beta, Strided<double> c) {
  Eigen::Map<Rows, 0, RowStep> y(c.data, M, N, RowStep(c.row));
  if (beta == 0) {
    y.setZero();
  } else if (beta != 1) {
    y *= beta;
  }
  with_dense(a, M, K, [&](const auto& left) {
    with_dense(b, K, N, [&](const auto& right) { y.noalias() += alpha * left * right; });
  });
}

}  // namespace brine
