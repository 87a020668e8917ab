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

// Lane l of out[i] = the sum of the lanes of what make(l, v) puts into v[i], for `count` i and the
// lanes from `first` on: kWidth<T> of them. Few of the vectors are alive at a time.
template <class T, int count, int N = kWidth<T>, class Make>
[[gnu::always_inline]] inline void folded(const Make& make, Vector<T>* out, int first = 0) {
  if constexpr (N == 1) {
    make(first, out);
  } else {
    Vector<T> low[count], high[count];
    folded<T, count, N / 2>(make, low, first);
    folded<T, count, N / 2>(make, high, first + N / 2);
#pragma GCC unroll 4
    for (int i = 0; i < count; ++i) {
      out[i] = fold_pair<T, N / 2>(low[i], high[i], std::make_integer_sequence<int, kWidth<T>>());
    }
  }
}

// Lane l = the sum of the lanes of make(l).
template <class T, class Make>
[[gnu::always_inline]] inline Vector<T> folded(const Make& make) {
  Vector<T> out[1];
  folded<T, 1>(
      [&](int l, Vector<T>* v) __attribute__((always_inline)) { v[0] = make(l); }, out);
  return out[0];
}

}  // namespace brine::BRINE_CPU
