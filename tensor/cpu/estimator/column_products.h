// The inner loops of products with the sums of keys over columns: one row's query and a few columns
// at a time, in registers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tensor/cpu/core/fold.h"
#include "tensor/cpu/estimator/prior_row.h"

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

// Products of a few neighbouring rows with the sums of keys over columns, from f64 prefix sums at
// the borders of columns: for rows of a causal model whose columns are so long that sums over
// windows (column_group.h) would be made for too few rows. All rows visit a group of borders
// together: they share most of their prefixes, which thus stay in L1.

inline void store_prior(double* p, PriorVector v) { store(p, v); }

// to += s[0] p0 + .. + s[3] p3; n is a multiple of 8.
inline void add4(const double* s, const double* p0, const double* p1, const double* p2,
                 const double* p3, int64_t n, double* to) {
  const double s0 = s[0], s1 = s[1], s2 = s[2], s3 = s[3];
  for (int64_t i = 0; i < n; i += kPriorWide) {
    const PriorVector a = s0 * load_prior(p0 + i) + s1 * load_prior(p1 + i);
    const PriorVector b = s2 * load_prior(p2 + i) + s3 * load_prior(p3 + i);
    store_prior(to + i, load_prior(to + i) + (a + b));
  }
}

// to += s0 p0 + s1 p1
inline void add2(double s0, const double* p0, double s1, const double* p1, int64_t n, double* to) {
  for (int64_t i = 0; i < n; i += kPriorWide) {
    store_prior(to + i, load_prior(to + i) + (s0 * load_prior(p0 + i) + s1 * load_prior(p1 + i)));
  }
}

inline void add1(double s0, const double* p0, int64_t n, double* to) {
  for (int64_t i = 0; i < n; i += kPriorWide) {
    store_prior(to + i, load_prior(to + i) + s0 * load_prior(p0 + i));
  }
}

class ColumnTile {
 public:
  static constexpr int64_t kRows = 8;   // at most
  static constexpr int64_t kGroup = 4;  // borders at a time

  // prefix [.., padded]: row j = the sum of the keys before j.
  ColumnTile(const double* prefix, int64_t K, int64_t padded)
      : prefix_(prefix),
        K_(K),
        padded_(padded),
        borders_(1 + (K + kGroup - 1) / kGroup * kGroup),
        begin_(size_t(kRows * borders_)),
        query_(size_t(kRows * padded), 0.0),
        value_(size_t(kRows * borders_), 0.0),
        dquery_(size_t(kRows * padded), 0.0) {}

  int64_t borders() const { return borders_; }
  // First keys [borders] of the columns of row r; border 0 is before all keys. Those after K are
  // equal to it.
  int32_t* begin(int64_t r) { return begin_.data() + r * borders_; }

  // q [count, padded].
  template <class T>
  void load(int64_t count, const T* q) {
    count_ = count;
    std::copy_n(q, count * padded_, query_.data());
  }

  // y [count, K]
  template <class T>
  void products(T* y) {
    for (int64_t c = 1; c <= K_; c += kGroup) {
      for (int64_t r = 0; r < count_; ++r) {
        dot4(query_.data() + r * padded_, at(r, c), at(r, c + 1), at(r, c + 2), at(r, c + 3),
             padded_, value_.data() + r * borders_ + c);
      }
    }
    for (int64_t r = 0; r < count_; ++r, y += K_) {
      double* below = value_.data() + r * borders_;
      below[0] = 0;
#pragma omp simd
      for (int64_t c = 0; c < K_; ++c) y[c] = T(below[c + 1] - below[c]);
    }
  }

  // dq [count, padded] += slopes [count, K] times sums, dprefix += slopes times q.
  template <class T>
  void spread(const T* slopes, T* dq, double* dprefix) {
    slopes_of_borders(slopes);
    std::fill(dquery_.begin(), dquery_.end(), 0.0);
    for (int64_t c = 1; c <= K_; c += kGroup) {
      for (int64_t r = 0; r < count_; ++r) {
        add4(value_.data() + r * borders_ + c, at(r, c), at(r, c + 1), at(r, c + 2), at(r, c + 3),
             padded_, dquery_.data() + r * padded_);
      }
    }
    for (int64_t i = 0; i < count_ * padded_; ++i) dq[i] += T(dquery_[size_t(i)]);
    for (int64_t c = 1; c <= K_; ++c) add_queries(c, dprefix);
  }

 private:
  const double* at(int64_t r, int64_t c) const {
    return prefix_ + int64_t(begin_[size_t(r * borders_ + c)]) * padded_;
  }

  // A border ends the column before it and begins the one after it.
  template <class T>
  void slopes_of_borders(const T* slopes) {
    for (int64_t r = 0; r < count_; ++r, slopes += K_) {
      double* to = value_.data() + r * borders_;
      for (int64_t c = 1; c < K_; ++c) to[c] = double(slopes[c - 1]) - double(slopes[c]);
      to[K_] = double(slopes[K_ - 1]);
      std::fill(to + K_ + 1, to + borders_, 0.0);
    }
  }

  // Rows with border c at the same key are processed together.
  void add_queries(int64_t c, double* dprefix) const {
    const int32_t* b = begin_.data() + c;
    const double* s = value_.data() + c;
    for (int64_t r = 0; r < count_;) {
      double* to = dprefix + int64_t(b[r * borders_]) * padded_;
      const double* q = query_.data() + r * padded_;
      if (r + 1 < count_ && b[(r + 1) * borders_] == b[r * borders_]) {
        add2(s[r * borders_], q, s[(r + 1) * borders_], q + padded_, padded_, to);
        r += 2;
      } else {
        add1(s[r * borders_], q, padded_, to);
        ++r;
      }
    }
  }

  const double* prefix_;
  int64_t K_, padded_, borders_, count_ = 0;
  std::vector<int32_t> begin_;                  // [kRows, borders]
  std::vector<double> query_, value_, dquery_;  // [kRows, padded]; at borders; [kRows, padded]
};

}  // namespace brine::BRINE_CPU
