// The only door to oneDNN: single-threaded pieces of work that the kernels spread over threads.
//
// Every call runs on the calling thread alone, inside a parallel loop or outside of one. How a
// product is cut into pieces depends on the sizes only, so that any number of threads gives the
// same bits; oneDNN itself cuts by the number of threads.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace brine::onednn {

// op(X) is X, or its transpose; rows of X are `ld` elements apart.
struct Gemm {
  int64_t M = 0, N = 0, K = 0;
  bool ta = false, tb = false;
  int64_t lda = 0, ldb = 0, ldc = 0;
  float alpha = 1, beta = 0;
};

// c [M, N] = alpha op(a) [M, K] op(b) [K, N] + beta c; c is not read when beta = 0.
void gemm(const Gemm& g, const float* a, const float* b, float* c);
// The same with bf16 inputs; only where has_bf16_gemm().
void gemm(const Gemm& g, const bf16* a, const bf16* b, float* c);
// True when the CPU multiplies bf16 faster than f32.
bool has_bf16_gemm();

// oneDNN called as it comes, with its own threads: what bench compares with.
void gemm_direct(const Gemm& g, const float* a, const float* b, float* c);

}  // namespace brine::onednn
