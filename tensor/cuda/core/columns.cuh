// The first keys of a row's columns, without slow divisions.
#pragma once

#include "tensor/cuda/core/packs.cuh"

namespace brine::cuda {

// math::column_begin.
__device__ inline int64_t column_begin(int64_t c, int64_t w, int64_t K) {
  return quotient(2 * c * w + K, 2 * K);
}

// The column of key j < w: the last one that starts at or before it.
__device__ inline int64_t column_of(int64_t j, int64_t w, int64_t K) {
  return quotient(K * (2 * j + 1) - 1, 2 * w);
}

}  // namespace brine::cuda
