// The first keys of a row's columns, without slow divisions.
#pragma once

#include "tensor/cuda/core/common.cuh"

namespace brine::cuda {

// a / b of numbers >= 0: in 32 bits if they fit, which is far faster.
__device__ inline int64_t divide(int64_t a, int64_t b) {
  if (((uint64_t(a) | uint64_t(b)) >> 32) == 0) return int64_t(uint32_t(a) / uint32_t(b));
  return a / b;
}

// math::column_begin.
__device__ inline int64_t column_begin(int64_t c, int64_t w, int64_t K) {
  return divide(2 * c * w + K, 2 * K);
}

// The column of key j < w: the last one that starts at or before it.
__device__ inline int64_t column_of(int64_t j, int64_t w, int64_t K) {
  return divide(K * (2 * j + 1) - 1, 2 * w);
}

}  // namespace brine::cuda
