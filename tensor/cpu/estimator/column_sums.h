// Products of queries with the sums of keys over columns, and their gradients, for one head: what
// the prior and the scores of mean keys have in common.
//
// Sums over columns are differences of prefix sums, so these are stored and multiplied in f64. Rows
// are processed in tiles, and all rows of a tile visit a group of borders together: neighbouring
// rows share most of their prefixes, which thus stay in L1.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "tensor/cpu/estimator/prior_row.h"
#include "tensor/csr.h"
#include "tensor/parallel.h"

namespace brine::BRINE_CPU {

// The data that all heads of a call share. Row r is that of query t = r step.
template <class T>
struct ColumnSums {
  static constexpr int64_t kLanes = 8;  // f64 in the widest vector: prefixes are whole vectors
  static constexpr int64_t kRows = 8;   // of a tile
  static constexpr int64_t kGroup = 4;  // borders at a time

  int64_t batch, heads, groups, tokens, rows, m, padded, K, step;
  const T *q, *k;
  RowWidths widths;

  // q [B, H, T, m], k [B, G, T, m].
  ColumnSums(const Tensor& q, const Tensor& k, const Visibility& visible, int64_t K, int64_t step)
      : batch(q.dim(0)),
        heads(q.dim(1)),
        groups(k.dim(1)),
        tokens(q.dim(2)),
        rows((tokens + step - 1) / step),
        m(q.dim(3)),
        padded((m + kLanes - 1) / kLanes * kLanes),
        K(K),
        step(step),
        q(q.data<T>()),
        k(k.data<T>()),
        widths(visible, tokens) {}

  int64_t all() const { return batch * heads; }
  // The group of keys of head n = b H + h: b G + g.
  int64_t group(int64_t n) const { return n / heads * groups + n % heads * groups / heads; }
  int64_t length(int64_t n) const { return widths.valid(n / heads); }
  int64_t width(int64_t n, int64_t row) const { return widths(n / heads, row * step); }
  // f64 numbers of prefix sums.
  int64_t memory() const { return (tokens + 1) * padded; }

  // Row j of `sums` becomes the sum of the keys before j: [length + 1, padded].
  void prefix_sums(double* sums, int64_t n) const {
    const int64_t keys = length(n);
    std::fill(sums, sums + padded, 0.0);
    const T* key = k + group(n) * tokens * m;
    for (int64_t j = 0; j < keys; ++j, key += m, sums += padded) {
      double* next = sums + padded;
#pragma omp simd
      for (int64_t i = 0; i < m; ++i) next[i] = sums[i] + double(key[i]);
      for (int64_t i = m; i < padded; ++i) next[i] = 0;
    }
  }
};

// Gradients of the keys: computed per head of queries, then added up over the heads of a group.
template <class T>
class KeyGradients {
 public:
  // dk [B, G, T, m].
  KeyGradients(const Tensor& dk, const ColumnSums<T>& at)
      : at_(at),
        dk_(dk),
        parts_(at.heads == at.groups ? dk
                                     : Tensor::empty({at.all(), at.tokens, at.m}, dk.dtype())) {}
  T* of_head(int64_t n) const { return parts_.template data<T>() + n * at_.tokens * at_.m; }

  void sum_up() const {
    if (at_.heads == at_.groups) return;
    const int64_t own = at_.heads / at_.groups, size = at_.tokens * at_.m;
    parallel_for(at_.batch * at_.groups, 1, [&](int64_t g, int64_t) {
      T* to = dk_.template data<T>() + g * size;
      std::copy_n(of_head(g * own), size, to);
      for (int64_t h = 1; h < own; ++h) {
        const T* from = of_head(g * own + h);
#pragma omp simd
        for (int64_t i = 0; i < size; ++i) to[i] += from[i];
      }
    });
  }

 private:
  const ColumnSums<T>& at_;
  Tensor dk_, parts_;
};

// A few neighbouring rows of one head. Border c is before column c: 0 <= c <= K.
template <class T>
struct ColumnTile {
  static constexpr int64_t kRows = ColumnSums<T>::kRows, kGroup = ColumnSums<T>::kGroup;

  const ColumnSums<T>& at;
  int64_t n;           // sequence times heads plus head
  const double* sums;  // prefix sums of its keys
  int64_t borders;     // stored per row: K + 1, and padding to a whole group after border 0
  int64_t count = 0;
  int64_t width[kRows] = {};
  std::vector<int32_t> begin;  // [kRows, borders] first key after a border
  std::vector<double> query;   // [kRows, padded]

  ColumnTile(const ColumnSums<T>& all, int64_t n, const double* sums)
      : at(all),
        n(n),
        sums(sums),
        borders(1 + (all.K + kGroup - 1) / kGroup * kGroup),
        begin(size_t(kRows * borders), 0),
        query(size_t(kRows * all.padded), 0.0) {}

  // Loads the rows from `first` on.
  void turn(int64_t first) {
    count = std::min(kRows, at.rows - first);
    for (int64_t r = 0; r < count; ++r) {
      const int64_t t = (first + r) * at.step;
      width[r] = at.width(n, first + r);
      place(width[r], begin.data() + r * borders);
      const T* q = at.q + (n * at.tokens + t) * at.m;
      for (int64_t i = 0; i < at.m; ++i) query[size_t(r * at.padded + i)] = double(q[i]);
    }
  }

  // math::column_begin of every border. (2cw + K + 1/2) / 2K is never within 1/4K of a whole
  // number, so a product with the inverse, which is far more exact than that, rounds down to the
  // same value.
  void place(int64_t w, int32_t* to) const {
    const double whole = 2 * double(w), inverse = 0.5 / double(at.K);
    const int32_t last = int32_t(at.K);
#pragma omp simd
    for (int32_t c = 0; c < int32_t(borders); ++c) {
      to[c] = int32_t((double(c < last ? c : last) * whole + double(last) + 0.5) * inverse);
    }
  }

  const int32_t* starts(int64_t r) const { return begin.data() + r * borders; }
  const double* prefix_at(int64_t r, int64_t c) const {
    return sums + int64_t(begin[size_t(r * borders + c)]) * at.padded;
  }

  // out [count, K] = each row's query times the sums over its columns. `below` [kRows, borders] is
  // scratch memory, whose column 0 is 0.
  void products(T* out, std::vector<double>& below) const {
    for (int64_t c = 1; c <= at.K; c += kGroup) {
      for (int64_t r = 0; r < count; ++r) {
        dot4(query.data() + r * at.padded, prefix_at(r, c), prefix_at(r, c + 1),
             prefix_at(r, c + 2), prefix_at(r, c + 3), at.padded, below.data() + r * borders + c);
      }
    }
    for (int64_t r = 0; r < count; ++r, out += at.K) {
      const double* from = below.data() + r * borders;
#pragma omp simd
      for (int64_t c = 0; c < at.K; ++c) out[c] = T(from[c + 1] - from[c]);
    }
  }

  // slope [kRows, borders] = the derivative with respect to the product at each border, from that
  // with respect to the products of the columns, d [count, K].
  void slopes(const T* d, std::vector<double>& slope) const {
    for (int64_t r = 0; r < count; ++r, d += at.K) {
      double* to = slope.data() + r * borders;
      to[0] = -double(d[0]);
      for (int64_t c = 1; c < at.K; ++c) to[c] = double(d[c - 1]) - double(d[c]);
      to[at.K] = double(d[at.K - 1]);
      for (int64_t c = at.K + 1; c < borders; ++c) to[c] = 0;
    }
  }

  // dq [kRows, padded] = sum over borders of slope times the prefix there.
  void add_prefixes(const std::vector<double>& slope, std::vector<double>& dq) const {
    std::fill(dq.begin(), dq.end(), 0.0);
    for (int64_t c = 1; c <= at.K; c += kGroup) {
      for (int64_t r = 0; r < count; ++r) {
        add4(slope.data() + r * borders + c, prefix_at(r, c), prefix_at(r, c + 1),
             prefix_at(r, c + 2), prefix_at(r, c + 3), at.padded, dq.data() + r * at.padded);
      }
    }
  }

  // dprefix at each border += slope times query. Rows with a border at the same key are processed
  // together.
  void add_queries(const std::vector<double>& slope, double* dprefix) const {
    for (int64_t c = 1; c <= at.K; ++c) {
      const int32_t* b = begin.data() + c;
      for (int64_t r = 0; r < count;) {
        double* to = dprefix + int64_t(b[r * borders]) * at.padded;
        const double *q = query.data() + r * at.padded, *s = slope.data() + r * borders + c;
        if (r + 1 < count && b[(r + 1) * borders] == b[r * borders]) {
          add2(s[0], q, s[borders], q + at.padded, at.padded, to);
          r += 2;
        } else {
          add1(s[0], q, at.padded, to);
          ++r;
        }
      }
    }
  }
};

// y [R, K] = the products of head n. `sums` [memory()] is scratch. finish(r, starts, row) follows
// for each row that sees keys, unseen(r, row) for the others.
template <class T, class Finish, class Unseen>
void column_products(const ColumnSums<T>& at, int64_t n, double* sums, T* y, Finish finish,
                     Unseen unseen) {
  at.prefix_sums(sums, n);
  ColumnTile<T> tile(at, n, sums);
  std::vector<double> below(size_t(tile.kRows * tile.borders), 0.0);
  for (int64_t first = 0; first < at.rows; first += tile.kRows) {
    tile.turn(first);
    tile.products(y + first * at.K, below);
    for (int64_t r = 0; r < tile.count; ++r) {
      T* row = y + (first + r) * at.K;
      if (tile.width[r] == 0) {
        unseen(first + r, row);
      } else {
        finish(first + r, tile.starts(r), row);
      }
    }
  }
}

// Gradients of the queries dq [T, m] and keys dk [T, m] of head n. slope(r, starts, row) turns the
// products of a row that sees keys into the derivatives with respect to them. `sums`
// [2 memory()] is scratch.
template <class T, class Slope>
void column_products_backward(const ColumnSums<T>& at, int64_t n, double* sums, T* dq, T* dk,
                              Slope slope) {
  at.prefix_sums(sums, n);
  ColumnTile<T> tile(at, n, sums);
  const int64_t length = at.length(n), padded = at.padded;
  double* dprefix = sums + at.memory();
  std::fill(dprefix, dprefix + (length + 1) * padded, 0.0);
  std::vector<double> border(size_t(tile.kRows * tile.borders), 0.0),
      dquery(size_t(tile.kRows * padded));
  std::vector<T> products(size_t(tile.kRows * at.K));
  std::fill(dq, dq + at.tokens * at.m, T(0));
  for (int64_t first = 0; first < at.rows; first += tile.kRows) {
    tile.turn(first);
    tile.products(products.data(), border);
    for (int64_t r = 0; r < tile.count; ++r) {
      T* row = products.data() + r * at.K;
      if (tile.width[r] == 0) {
        std::fill_n(row, at.K, T(0));
      } else {
        slope(first + r, tile.starts(r), row);
      }
    }
    tile.slopes(products.data(), border);
    tile.add_prefixes(border, dquery);
    tile.add_queries(border, dprefix);
    for (int64_t r = 0; r < tile.count; ++r) {
      border[size_t(r * tile.borders)] = 0;
      T* to = dq + (first + r) * at.step * at.m;
      for (int64_t i = 0; i < at.m; ++i) to[i] = T(dquery[size_t(r * padded + i)]);
    }
  }
  // Key j is in every prefix after it.
  double* later = dprefix + length * padded;
  for (int64_t j = length - 1; j >= 0; --j, later -= padded) {
    for (int64_t i = 0; i < at.m; ++i) dk[j * at.m + i] = T(later[i]);
    if (j == 0) break;
    double* here = later - padded;
#pragma omp simd
    for (int64_t i = 0; i < padded; ++i) here[i] += later[i];
  }
  std::fill(dk + length * at.m, dk + at.tokens * at.m, T(0));
}

}  // namespace brine::BRINE_CPU
