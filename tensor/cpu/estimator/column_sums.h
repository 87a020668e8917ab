// Products of queries with the sums of keys over columns: the sizes of a call and its memory. What
// the prior and the scores of mean keys have in common.
//
// A row that sees w keys has columns of n = floor(w / K) keys and of n + 1. Rows with the same n
// are a band: neighbours of K rows in a causal model. The sums of n and of n + 1 consecutive keys
// from every start that the band needs are differences of f64 prefix sums, rounded once, so that a
// column of small mass among large ones keeps its digits and the products need no wider type. A
// band makes up to w sums of each kind for its K rows: from a length on they cost more than they
// save, and the rows take the prefix sums themselves (column_tile.h).
#pragma once

#include <algorithm>

#include "tensor/cpu/core/pieces.h"
#include "tensor/cpu/core/vectors.h"
#include "tensor/csr.h"

namespace brine::BRINE_CPU {

// The data that all heads of a call share. Row r is that of query t = r step.
//
// Work is divided into units: the heads that have the same keys, and one of `parts` ranges of their
// rows. Sums are fetched once for all these heads, which takes longer than a product. The division
// depends on sizes only, never on threads: two parts, or what makes eight units of few groups.
template <class T>
struct ColumnSums {
  static constexpr int64_t kWide = kWidth<T>;  // columns at a time
  static constexpr int64_t kRows = 64;         // of a band at a time
  static constexpr int64_t kRowsOfPart = 128;  // at least

  int64_t batch, heads, groups, tokens, rows, m, padded, K, step, parts;
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
        padded((m + kWide - 1) / kWide * kWide),
        K(K),
        step(step),
        parts(std::clamp<int64_t>(rows / kRowsOfPart, 1,
                                  std::max<int64_t>(2, 8 / std::max<int64_t>(1, batch * groups)))),
        q(q.data<T>()),
        k(k.data<T>()),
        widths(visible, tokens) {}

  int64_t units() const { return batch * groups * parts; }
  int64_t all() const { return batch * heads; }
  int64_t own() const { return heads / groups; }  // heads of a unit
  // Keys that a row of head n = b H + h sees.
  int64_t width(int64_t n, int64_t row) const { return widths(n / heads, row * step); }
  // Keys of the longest columns whose rows use windows: measured, for one head of 64 numbers.
  int64_t longest_window() const { return widths.causal ? K / 8 / step : tokens; }
  // Numbers of one array with a row for every token and one more.
  int64_t array() const { return (tokens + 1) * padded; }
  // The same for the starts of windows.
  int64_t window_array() const {
    return (std::min(tokens, widths.causal ? (longest_window() + 1) * K : tokens) + 1) * padded;
  }

  // first[i] = math::column_begin(c + i, w, K), of border K beyond it. (2cw + K + 1/2) / 2K is
  // never within 1/4K of a whole number, so a product with the inverse, which is far more exact
  // than that, rounds down to the same value.
  void place(int64_t w, int64_t c, int64_t count, int32_t* first) const {
    const double whole = 2 * double(w), inverse = 0.5 / double(K);
    const int32_t last = int32_t(K), from = int32_t(c);
#pragma omp simd
    for (int32_t i = 0; i < int32_t(count); ++i) {
      const int32_t at = from + i < last ? from + i : last;
      first[i] = int32_t((double(at) * whole + double(last) + 0.5) * inverse);
    }
  }
};

// Memory for the units that run at the same time.
template <class T>
struct ColumnMemory {
  ColumnMemory(const ColumnSums<T>& at, bool backward)
      : wide(at.units(), (backward ? 2 : 1) * at.array()),
        own(at.units(), (backward ? 4 : 2) * at.window_array() +
                            at.own() * at.kRows * (backward ? 2 * at.padded + at.K : at.padded) +
                            at.K) {}
  PieceMemory<double> wide;
  PieceMemory<T> own;
};

}  // namespace brine::BRINE_CPU
