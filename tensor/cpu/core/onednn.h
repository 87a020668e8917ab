// The only interface to oneDNN: single-threaded pieces of work that the kernels distribute over
// threads.
//
// Every call runs on the calling thread only, inside a parallel loop or outside. The pieces of a
// product depend only on the sizes, so that any number of threads gives the same bits; oneDNN
// itself splits by the number of threads.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "tensor/base/dtype.h"

namespace brine::onednn {

// op(X) is X, or its transpose; rows of X are `ld` elements apart.
struct Gemm {
  int64_t M = 0, N = 0, K = 0;
  bool ta = false, tb = false;
  int64_t lda = 0, ldb = 0, ldc = 0;
  float alpha = 1, beta = 0;

  auto operator<=>(const Gemm&) const = default;
};

// c [M, N] = alpha op(a) [M, K] op(b) [K, N] + beta c; c is not read when beta = 0.
void gemm(const Gemm& g, const float* a, const float* b, float* c);
// The same with bf16 inputs; only where has_bf16_gemm().
void gemm(const Gemm& g, const bf16* a, const bf16* b, float* c);
// "2.6.3", of the library that is loaded.
std::string version();

// True when the CPU multiplies bf16 faster than f32.
bool has_bf16_gemm();

}  // namespace brine::onednn
