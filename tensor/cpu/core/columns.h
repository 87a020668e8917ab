// The first keys of all columns of a row.
#pragma once

#include "tensor/kernels/kernel.h"

namespace brine::BRINE_CPU {

// starts[c] = math::column_begin(c, w, K) for c = 0..K. (2cw + K + 1/2) / 2K is never within 1/4K
// of a whole number, so a product with the inverse, which is far more exact than that, rounds down
// to the same value.
template <class Index>
void column_starts(Index* starts, int64_t w, int64_t K) {
  const double whole = 2 * double(w), half = double(K) + 0.5, inverse = 0.5 / double(K);
  const int32_t last = int32_t(K);
#pragma omp simd
  for (int32_t c = 0; c <= last; ++c) {
    starts[c] = Index(int32_t((double(c) * whole + half) * inverse));
  }
}

}  // namespace brine::BRINE_CPU
