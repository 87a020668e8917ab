// The matrix product in f64, with which tests compare: a plain loop, compiled for one instruction
// set.
#include "tensor/cpu/core/gemm_f64.h"

#include <cstddef>
#include <vector>

namespace brine {

void gemm_f64(int64_t M, int64_t N, int64_t K, double alpha, Strided<const double> a,
              Strided<const double> b, double beta, Strided<double> c) {
  std::vector<double> rows;  // b, if its rows are not contiguous
  if (b.column != 1) {
    rows.resize(size_t(K * N));
    for (int64_t k = 0; k < K; ++k) {
      for (int64_t n = 0; n < N; ++n) rows[size_t(k * N + n)] = b.data[k * b.row + n * b.column];
    }
    b = {rows.data(), N, 1};
  }
  for (int64_t m = 0; m < M; ++m) {
    double* y = c.data + m * c.row;
    for (int64_t n = 0; n < N; ++n) y[n] = beta == 0 ? 0 : beta * y[n];
    auto factor = [&](int64_t k) { return alpha * a.data[m * a.row + k * a.column]; };
    int64_t k = 0;
    for (; k + 4 <= K; k += 4) {  // y is read and written once for four rows of b
      const double x0 = factor(k), x1 = factor(k + 1), x2 = factor(k + 2), x3 = factor(k + 3);
      const double *b0 = b.data + k * b.row, *b1 = b0 + b.row, *b2 = b1 + b.row, *b3 = b2 + b.row;
#pragma omp simd
      for (int64_t n = 0; n < N; ++n) {
        y[n] = y[n] + x0 * b0[n] + x1 * b1[n] + x2 * b2[n] + x3 * b3[n];
      }
    }
    for (; k < K; ++k) {
      const double x = factor(k);
      for (int64_t n = 0; n < N; ++n) y[n] += x * b.data[k * b.row + n];
    }
  }
}

}  // namespace brine
