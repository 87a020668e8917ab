// The first keys of all columns of a row.
#pragma once

#include "tensor/kernels/kernel.h"

namespace brine::BRINE_CPU {

// starts[c] = math::column_begin(c, w, K) for c = 0..K, by one division and K additions.
template <class Index>
void column_starts(Index* starts, int64_t w, int64_t K) {
  int64_t step = w / K, step_rest = 2 * (w % K), begin = 0, rest = K;
  for (int64_t c = 0; c <= K; ++c) {
    starts[c] = Index(begin);
    begin += step;
    rest += step_rest;
    if (rest >= 2 * K) {
      rest -= 2 * K;
      ++begin;
    }
  }
}

}  // namespace brine::BRINE_CPU
