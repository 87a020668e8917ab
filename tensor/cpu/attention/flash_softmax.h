// The running softmax of tiled attention. A tile's scores are stored as [key, query].
#pragma once

#include <algorithm>
#include <cstdint>

#include "tensor/base/math.h"
#include "tensor/kernels/kernel.h"

namespace brine::BRINE_CPU {

constexpr int64_t kFlashQueries = 64;
// Keys per tile: a multiple of blocks of six, twelve and eight rows, and the scores stay in L1.
constexpr int64_t kFlashKeys = 96;

// The running softmax of a tile: per query the largest score so far, the sum of exponentials
// relative to it, and the factor for the sums of earlier tiles of keys.
template <class T>
struct Running {
  alignas(64) T maximum[kFlashQueries], sum[kFlashQueries], rescale[kFlashQueries];
};

// s [keys, lanes], rows `step` apart, -> exp(scale (s - maximum)), and updates the running numbers.
// `Lanes` is the number of lanes if it is known at compile time, otherwise 0. ahead(n) is called
// for each key: prefetching the memory of the next product is free here, and costs up to a fifth of
// the time in that product.
template <int64_t Lanes, class T, class Ahead>
void soften(T* s, int64_t step, int64_t keys, int64_t count, T scale, Running<T>& run,
            Ahead ahead) {
  const int64_t lanes = Lanes ? Lanes : count;
  alignas(64) T maximum[kFlashQueries];
  std::copy_n(run.maximum, lanes, maximum);
  for (int64_t n = 0; n < keys; ++n) {
    const T* row = s + n * step;
#pragma omp simd
    for (int64_t m = 0; m < lanes; ++m) maximum[m] = row[m] > maximum[m] ? row[m] : maximum[m];
  }
  alignas(64) T sum[kFlashQueries];
#pragma omp simd
  for (int64_t m = 0; m < lanes; ++m) {
    run.rescale[m] = math::exp_nonpositive((run.maximum[m] - maximum[m]) * scale);
    run.maximum[m] = maximum[m];
    maximum[m] *= scale;
    sum[m] = run.sum[m] * run.rescale[m];
  }
  for (int64_t n = 0; n < keys; ++n) {
    T* row = s + n * step;
    ahead(n);
#pragma omp simd
    for (int64_t m = 0; m < lanes; ++m) {
      row[m] = math::exp_nonpositive(row[m] * scale - maximum[m]);
      sum[m] += row[m];
    }
  }
  std::copy_n(sum, lanes, run.sum);
}

}  // namespace brine::BRINE_CPU
