// The first keys of the columns of a row.
#pragma once

#include <bit>

#include "tensor/kernels/kernel.h"

namespace brine::BRINE_CPU {

// starts[i] = math::column_begin(c + i, w, K) for `count` columns, of border K beyond it.
// (2cw + K + 1/2) / 2K is never within 1/4K of a whole number, so a product with the inverse, which
// is far more exact than that, rounds down to the same value. Where K is a power of two whole
// numbers do.
template <class Index>
void column_starts(Index* starts, int64_t w, int64_t K, int64_t c, int64_t count) {
  const int32_t last = int32_t(K), from = int32_t(c);
  if (std::has_single_bit(uint64_t(K)) && w <= (int64_t(1) << 30) / K - 1) {
    const int32_t twice = 2 * int32_t(w), shift = std::countr_zero(uint64_t(K)) + 1;
#pragma omp simd
    for (int32_t i = 0; i < int32_t(count); ++i) {
      const int32_t at = from + i < last ? from + i : last;
      starts[i] = Index((at * twice + last) >> shift);
    }
    return;
  }
  const double whole = 2 * double(w), inverse = 0.5 / double(K);
#pragma omp simd
  for (int32_t i = 0; i < int32_t(count); ++i) {
    const int32_t at = from + i < last ? from + i : last;
    starts[i] = Index(int32_t((double(at) * whole + double(last) + 0.5) * inverse));
  }
}

// Those of columns 0 .. K.
template <class Index>
void column_starts(Index* starts, int64_t w, int64_t K) {
  column_starts(starts, w, K, 0, K + 1);
}

// The same for the sums over columns whose unit the row has (math::SumColumns).
inline void sum_starts(int32_t* starts, int64_t w, int64_t K, int64_t unit, int64_t c,
                       int64_t count) {
  column_starts(starts, w / unit, K, c, count);
  if (unit == 1) return;
  for (int64_t i = 0; i < count; ++i) {
    starts[i] = c + i >= K ? int32_t(w) : starts[i] * int32_t(unit);
  }
}

}  // namespace brine::BRINE_CPU
