// Products of queries with the sums of keys over columns: the sizes of a call and its memory. What
// the prior and the scores of mean keys have in common.
//
// A row that sees W units of keys (math::unit_of_sums) has columns of n = floor(W / K) units and of
// n + 1; the keys that are less than a unit are added to its last column. Rows with the same unit
// and n are a band: neighbours of K units in a causal model. The sums of n and of n + 1 consecutive
// units from every start that the band needs are differences of f64 prefix sums, rounded once, so
// that a column of small mass among large ones keeps its digits and the products need no wider
// type. A band makes up to W sums of each kind for its rows: where columns have many units they
// cost more than they save, and the rows take the prefix sums themselves (column_products.h).
#pragma once

#include <algorithm>

#include "tensor/cpu/core/columns.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/cpu/core/vectors.h"
#include "tensor/cpu/estimator/prior_row.h"
#include "tensor/mask/csr.h"

namespace brine::BRINE_CPU {

// The data that all heads of a call share. Row r is that of query t = r step.
//
// Work is divided into tasks: the heads that have the same keys, and one of `parts` ranges of their
// rows. Sums are fetched once for all these heads, which takes longer than a product. The division
// depends on sizes only, never on threads: two parts, or what makes eight tasks of few groups.
template <class T>
struct ColumnSums {
  static constexpr int64_t kWide = kWidth<T>;  // columns at a time
  static constexpr int64_t kRows = 64;         // of a band at a time
  static constexpr int64_t kRowsOfPart = 128;  // at least

  int64_t batch, heads, groups, queries, tokens, rows, m, padded, K, step, units, parts;
  const T *q, *k;
  RowWidths widths;

  // q [B, H, T, m], k [B, G, S, m]: S = T but behind the keys before row 0.
  ColumnSums(const Tensor& q, const Tensor& k, const Visibility& visible, int64_t K,
             ColumnGrid grid)
      : batch(q.dim(0)),
        heads(q.dim(1)),
        groups(k.dim(1)),
        queries(q.dim(2)),
        tokens(k.dim(2)),
        rows((queries + grid.step - 1) / grid.step),
        m(q.dim(3)),
        padded((m + kWide - 1) / kWide * kWide),
        K(K),
        step(grid.step),
        units(grid.units),
        parts(std::clamp<int64_t>(rows / kRowsOfPart, 1,
                                  std::max<int64_t>(2, 8 / std::max<int64_t>(1, batch * groups)))),
        q(q.data<T>()),
        k(k.data<T>()),
        widths(visible, queries) {}

  int64_t tasks() const { return batch * groups * parts; }
  int64_t all() const { return batch * heads; }
  int64_t task_heads() const { return heads / groups; }
  // Keys that a row of head n = b H + h sees.
  int64_t width(int64_t n, int64_t row) const { return widths(n / heads, row * step); }
  int64_t unit_of(int64_t w) const { return math::unit_of_sums(w, K, units); }
  ShareRow<T> share_row(const int32_t* begin, int64_t n, int64_t row, double floor) const {
    const int64_t w = width(n, row);
    return {begin, w, K, unit_of(w), floor};
  }
  // Units of the longest columns whose rows use windows: measured, for one head of 64 numbers.
  int64_t longest_window(int64_t unit) const {
    const int64_t pays = K * unit / 8 / step;
    return !widths.causal ? tokens : units ? std::min(2 * units - 1, pays) : pays;
  }
  // Numbers of one array with a row for every token and one more.
  int64_t array() const { return (tokens + 1) * padded; }
  // The same for the starts of windows.
  int64_t window_array() const {
    const int64_t longest = longest_window(unit_of(tokens));
    return (std::min(tokens, widths.causal ? (longest + 1) * K : tokens) + 1) * padded;
  }

  // First keys of the columns c .. c + count of a row that sees w keys, of border K beyond it.
  void fill_starts(int64_t w, int64_t c, int64_t count, int32_t* first) const {
    sum_starts(first, w, K, unit_of(w), c, count);
  }
};

// Memory for the tasks that run at the same time.
template <class T>
struct ColumnMemory {
  ColumnMemory(const ColumnSums<T>& at, bool backward)
      : wide(at.tasks(), (backward ? 2 : 1) * at.array()),
        sums(at.tasks(),
             (backward ? 4 : 2) * at.window_array() +
                 at.task_heads() * at.kRows * (backward ? 2 * at.padded + at.K : at.padded) +
                 at.K) {}
  PieceMemory<double> wide;
  PieceMemory<T> sums;
};

}  // namespace brine::BRINE_CPU
