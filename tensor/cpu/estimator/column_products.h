// The inner loops of products with the sums of keys over columns: one row's query and a few columns
// at a time, in registers.
#pragma once

#include <cstdint>

#include "tensor/cpu/core/fold.h"

namespace brine::BRINE_CPU {

// out[n][l] = q[n] . from[offset[l]..] for N queries and kWidth<T> columns l; queries and sums have
// V vectors. A sum is loaded once for all queries.
template <class T, int V, int N>
inline void column_dots_of(const T* const* q, const T* from, const int64_t* offset,
                           Vector<T>* out) {
  constexpr int W = kWidth<T>;
  Vector<T> query[N][V];
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
    for (int i = 0; i < V; ++i) query[n][i] = load(q[n] + i * W);
  }
  folded<T, N>(
      [&](int l, Vector<T>* sum) __attribute__((always_inline)) {
        const T* x = from + offset[l];
        const Vector<T> first = load(x);
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) sum[n] = query[n][0] * first;
#pragma GCC unroll 4
        for (int i = 1; i < V; ++i) {
          const Vector<T> part = load(x + i * W);
#pragma GCC unroll 4
          for (int n = 0; n < N; ++n) sum[n] += query[n][i] * part;
        }
      },
      out);
}

// The same for one query of `depth` numbers, whole vectors.
template <class T>
[[gnu::noinline]] Vector<T> column_dots_of_any(const T* q, const T* from, const int64_t* offset,
                                               int64_t depth) {
  constexpr int W = kWidth<T>;
  return folded<T>([&](int l) __attribute__((always_inline)) {
    const T* x = from + offset[l];
    Vector<T> sum = load(q) * load(x);
    for (int64_t i = W; i < depth; i += W) sum += load(q + i) * load(x + i);
    return sum;
  });
}

// Queries that share their loads: as many as registers have room for.
constexpr int64_t kSharedQueries = 2;

// out[n] for `count` <= kSharedQueries queries.
template <class T>
inline void column_dots(const T* const* q, int64_t count, const T* from, const int64_t* offset,
                        int64_t depth, Vector<T>* out) {
  if (depth == 4 * kWidth<T>) {
    if (count == 2) return column_dots_of<T, 4, 2>(q, from, offset, out);
    return column_dots_of<T, 4, 1>(q, from, offset, out);
  }
  for (int64_t n = 0; n < count; ++n) out[n] = column_dots_of_any(q[n], from, offset, depth);
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
