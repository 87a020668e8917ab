// The matrix product in f64, on the calling thread.
#pragma once

#include "tensor/cpu/core/strided.h"

namespace brine {

// c [M, N] = alpha a [M, K] b [K, N] + beta c; c is not read when beta = 0, and its columns are
// contiguous. a and b have any strides. f64 is for tests: this shares no code with products in f32.
void gemm_f64(int64_t M, int64_t N, int64_t K, double alpha, Strided<const double> a,
              Strided<const double> b, double beta, Strided<double> c);

}  // namespace brine
