// Sums over the chunks of a sequence, in order: the middle part of every chunked scan.
#pragma once

#include "tensor/cuda/core/common.cuh"

namespace brine::cuda {

constexpr int kAhead = 8;  // chunks that a thread loads before it sums them

// parts [heads, chunks, size]: each chunk's sum becomes that of the chunks before it, or with
// `backwards` of those after it. The running sum is f64.
template <class T>
__global__ void sums_before_kernel(T* parts, int64_t heads, int64_t chunks, int64_t size,
                                   bool backwards) {
  const int64_t at = piece();
  if (at >= heads * size) return;
  const int64_t step = backwards ? -size : size;
  T* here = parts + at / size * chunks * size + at % size + (backwards ? (chunks - 1) * size : 0);
  double sum = 0;
  for (int64_t c = 0; c < chunks; c += kAhead, here += kAhead * step) {
    T part[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) part[j] = c + j < chunks ? here[j * step] : T(0);
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (c + j < chunks) here[j * step] = T(sum);
      sum += double(part[j]);
    }
  }
}

// total [heads, size] = the sum over all chunks.
template <class T>
__global__ void sum_kernel(T* total, const T* parts, int64_t heads, int64_t chunks, int64_t size) {
  const int64_t at = piece();
  if (at >= heads * size) return;
  const T* here = parts + at / size * chunks * size + at % size;
  double sum = 0;
  for (int64_t c = 0; c < chunks; ++c) sum += double(here[c * size]);
  total[at] = T(sum);
}

}  // namespace brine::cuda
