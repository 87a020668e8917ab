// The matrix product in f64, on the calling thread.
#pragma once

#include "tensor/cpu/core/onednn.h"

namespace brine {

// A matrix anywhere in memory: element (i, j) is data[i row + j column].
template <class T>
struct Strided {
  T* data = nullptr;
  int64_t row = 0, column = 0;
  T* at(int64_t i, int64_t j) const { return data + i * row + j * column; }
};

// c [M, N] = alpha a [M, K] b [K, N] + beta c; c is not read when beta = 0, and its columns are
// contiguous. a and b have any strides. f64 is for tests: this shares no code with products in f32.
void gemm_f64(int64_t M, int64_t N, int64_t K, double alpha, Strided<const double> a,
              Strided<const double> b, double beta, Strided<double> c);

namespace onednn {

// gemm() in f64.
inline void gemm(const Gemm& g, const double* a, const double* b, double* c) {
  const Strided<const double> left{a, g.ta ? 1 : g.lda, g.ta ? g.lda : 1};
  const Strided<const double> right{b, g.tb ? 1 : g.ldb, g.tb ? g.ldb : 1};
  gemm_f64(g.M, g.N, g.K, double(g.alpha), left, right, double(g.beta), {c, g.ldc, 1});
}

}  // namespace onednn
}  // namespace brine
