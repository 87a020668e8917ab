// One query against rows of a cache, which may be stored in 16 bits (S): they are widened in
// registers.
#pragma once

#include <cstdint>

#include "tensor/cpu/core/stored_vectors.h"

namespace brine::BRINE_CPU {

// out[j] = factor (x . rows[j]) for n rows of d numbers.
template <class T, class S>
void dots(T* out, const T* x, const S* rows, int64_t n, int64_t d, T factor) {
  constexpr int W = kWidth<T>;
  for (int64_t j = 0; j < n; ++j, rows += d) {
    Vector<T> even = {}, odd = {};
    int64_t c = 0;
    for (; c + 2 * W <= d; c += 2 * W) {
      even += load(x + c) * load_as<T>(rows + c);
      odd += load(x + c + W) * load_as<T>(rows + c + W);
    }
    // One more vector rather than a loop over W numbers: compilers round such loops differently.
    if (c + W <= d) even += load(x + c) * load_as<T>(rows + c), c += W;
    T sum = sum_of_vector<T, kVectorBytes>(even + odd);
    for (; c < d; ++c) sum += x[c] * T(rows[c]);
    out[j] = factor * sum;
  }
}

// Consecutive rows [first, first + count).
struct KeyRun {
  int64_t first, count;
};

// out[0..N W) = the weighted sum of the rows of the runs, d apart; weights in their order.
template <int N, class T, class S, class Runs>
void weighted(T* out, const T* weights, const S* rows, const Runs& runs, int64_t d) {
  constexpr int W = kWidth<T>;
  Vector<T> sum[N] = {};
  for (const KeyRun& run : runs) {
    const S* row = rows + run.first * d;
    for (int64_t j = 0; j < run.count; ++j, row += d, ++weights) {
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) sum[i] += *weights * load_as<T>(row + i * W);
    }
  }
  for (int i = 0; i < N; ++i) store(out + i * W, sum[i]);
}

template <class T, class S, class Runs>
void weighted_sum(T* out, const T* weights, const S* rows, const Runs& runs, int64_t d) {
  constexpr int W = kWidth<T>;
  int64_t c = 0;
  for (; c + 4 * W <= d; c += 4 * W) weighted<4>(out + c, weights, rows + c, runs, d);
  for (; c + W <= d; c += W) weighted<1>(out + c, weights, rows + c, runs, d);
  for (; c < d; ++c) {
    T sum = 0;
    const T* weight = weights;
    for (const KeyRun& run : runs) {
      for (int64_t j = run.first; j < run.first + run.count; ++j)
        sum += *weight++ * T(rows[j * d + c]);
    }
    out[c] = sum;
  }
}

}  // namespace brine::BRINE_CPU
