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

// Lane l = the sum of the lanes of make(l), for the N lanes from `first` on: kWidth<T> of them. Few
// of the vectors are alive at a time.
template <class T, int N = kWidth<T>, class Make>
[[gnu::always_inline]] inline Vector<T> folded(const Make& make, int first = 0) {
  if constexpr (N == 1) {
    return make(first);
  } else {
    return fold_pair<T, N / 2>(folded<T, N / 2>(make, first), folded<T, N / 2>(make, first + N / 2),
                               std::make_integer_sequence<int, kWidth<T>>());
  }
}

}  // namespace brine::BRINE_CPU
