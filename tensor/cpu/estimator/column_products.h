// The inner loops of products with the sums of keys over columns: one row's query and a few columns
// at a time, in registers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "tensor/cpu/core/vectors.h"

namespace brine::BRINE_CPU {

// Lane l of the result is lane l of b plus its partner in b where l has the bit, else those of a.
// With columns in the lanes of a and b this halves the sums that remain.
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

// out[l] = q . from[offset[l]..] for kWidth<T> columns l; q and the sums have `depth` numbers,
// whole vectors.
template <class T>
inline Vector<T> column_dots(const T* q, const T* from, const int64_t* offset, int64_t depth) {
  constexpr int W = kWidth<T>;
  Vector<T> sum[W];
  const Vector<T> first = load(q);
#pragma GCC unroll 16
  for (int l = 0; l < W; ++l) sum[l] = first * load(from + offset[l]);
  for (int64_t i = W; i < depth; i += W) {
    const Vector<T> x = load(q + i);
#pragma GCC unroll 16
    for (int l = 0; l < W; ++l) sum[l] += x * load(from + offset[l] + i);
  }
  fold_vectors<T>(sum);
  return sum[0];
}

// dq += sum over columns of slope times sums, grads += slope times q, on S vectors.
template <class T, int S>
inline void spread_strip(T* dq, const T* q, const T* slope, const T* from, T* grads,
                         const int64_t* offset, int64_t columns) {
  constexpr int W = kWidth<T>;
  Vector<T> query[S], sum[S];
#pragma GCC unroll 4
  for (int s = 0; s < S; ++s) {
    query[s] = load(q + s * W);
    sum[s] = load(dq + s * W);
  }
  for (int64_t c = 0; c < columns; ++c) {
    const T by = slope[c];
    const T* x = from + offset[c];
    T* to = grads + offset[c];
#pragma GCC unroll 4
    for (int s = 0; s < S; ++s) {
      sum[s] += by * load(x + s * W);
      store(to + s * W, load(to + s * W) + by * query[s]);
    }
  }
#pragma GCC unroll 4
  for (int s = 0; s < S; ++s) store(dq + s * W, sum[s]);
}

// The same on `depth` numbers.
template <class T>
inline void column_spread(T* dq, const T* q, const T* slope, const T* from, T* grads,
                          const int64_t* offset, int64_t columns, int64_t depth) {
  constexpr int64_t W = kWidth<T>;
  int64_t i = 0;
  for (; i + 4 * W <= depth; i += 4 * W) {
    spread_strip<T, 4>(dq + i, q + i, slope, from + i, grads + i, offset, columns);
  }
  for (; i < depth; i += W) {
    spread_strip<T, 1>(dq + i, q + i, slope, from + i, grads + i, offset, columns);
  }
}

}  // namespace brine::BRINE_CPU
