// The sums of the lanes of several vectors at once.
#pragma once

#include <utility>

#include "tensor/cpu/core/vectors.h"

namespace brine::BRINE_CPU {

// Lane l of the result is lane l of b plus its partner in b where l has the bit, else those of a.
// This halves the sums that remain.
template <class T, int bit, int... l>
inline Vector<T> fold_pair(Vector<T> a, Vector<T> b, std::integer_sequence<int, l...>) {
  constexpr int W = kWidth<T>;
  return __builtin_shufflevector(a, b, (l & bit ? W + l : l)...) +
         __builtin_shufflevector(a, b, (l & bit ? W + (l ^ bit) : l ^ bit)...);
}

// v[0 .. kWidth) become one vector in v[0]: lane l = the sum of the lanes of v[l].
template <class T, int bit = 1>
inline void fold_vectors(Vector<T>* v) {
  constexpr int W = kWidth<T>;
  if constexpr (bit < W) {
#pragma GCC unroll 16
    for (int i = 0; i < W; i += 2 * bit) {
      v[i] = fold_pair<T, bit>(v[i], v[i + bit], std::make_integer_sequence<int, W>());
    }
    fold_vectors<T, 2 * bit>(v);
  }
}

}  // namespace brine::BRINE_CPU
