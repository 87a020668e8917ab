// Softmax of one short row: of a mask's entries, of columns, of cached keys.
#pragma once

#include <cstdint>

#include "tensor/base/math.h"
#include "tensor/kernels/kernel.h"

namespace brine::BRINE_CPU {

// p = softmax(x) over n > 0 numbers, the largest of them finite; -inf becomes 0. p may be x.
template <class T>
inline void softmax_row(T* p, const T* x, int64_t n) {
  T maximum = x[0], sum = 0;
#pragma omp simd reduction(max : maximum)
  for (int64_t i = 0; i < n; ++i) maximum = x[i] > maximum ? x[i] : maximum;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    p[i] = math::exp_nonpositive(x[i] - maximum);
    sum += p[i];
  }
  const T share = 1 / sum;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) p[i] *= share;
}

template <class T>
inline void softmax_in_place(T* p, int64_t n) {
  softmax_row(p, p, n);
}

}  // namespace brine::BRINE_CPU
