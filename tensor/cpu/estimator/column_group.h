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
#include <span>
#include <utility>
#include <vector>

#include "tensor/cpu/core/columns.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/cpu/core/vectors.h"
#include "tensor/cpu/estimator/column_products.h"
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

  // q [B, H, T, m], k [B, G, S, m]: S = T plus the keys before row 0.
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

// The heads of one group of keys and a range of their rows, band by band.
//
// Data of rows is [heads, kRows, ..]: the heads of the task, each with room for kRows rows.
template <class T>
class ColumnGroup {
 public:
  using Shared = ColumnSums<T>;

  // `wide` and `sums` as ColumnMemory has them.
  ColumnGroup(const Shared& shared, int64_t task, double* wide, T* sums)
      : at_(shared),
        group_(task / shared.parts),
        first_(shared.rows * (task % shared.parts) / shared.parts),
        end_(shared.rows * (task % shared.parts + 1) / shared.parts),
        length_(std::min(shared.widths.length(group_ / shared.groups), shared.tokens)),
        keys_seen_(at_.widths.causal
                       ? std::min(length_, std::max<int64_t>(0, position(end_ - 1) + 1))
                       : length_),
        prefix_(wide),
        sums_(sums),
        long_(at_.window_array()),
        rest_(size_t(at_.padded), T(0)),
        tile_(wide, at_.K, at_.padded) {
    std::fill(wide, wide + at_.padded, 0.0);
    const T* key = at_.k + group_ * at_.tokens * at_.m;
    for (int64_t j = 0; j < keys_seen_; ++j, key += at_.m, wide += at_.padded) {
      double* next = wide + at_.padded;
#pragma omp simd
      for (int64_t i = 0; i < at_.m; ++i) next[i] = wide[i] + double(key[i]);
      for (int64_t i = at_.m; i < at_.padded; ++i) next[i] = 0;
    }
  }

  int64_t group() const { return group_; }                                 // b G + g
  int64_t head(int64_t h) const { return group_ * at_.task_heads() + h; }  // b H + its head
  int64_t first_row() const { return first_; }
  int64_t end_row() const { return end_; }
  // Keys that the last row sees.
  int64_t keys_seen() const { return keys_seen_; }

  // The columns of a band's rows: n units of keys, or one more.
  struct Band {
    int64_t unit = 1, units = -1;  // keys of a unit; n, -1: no rows
    bool operator==(const Band&) const = default;
  };

  // Calls f(first, count) for pieces of the rows that see keys, whose sums then are in place;
  // `left(next)` before the windows of a band are replaced by those of the next. Returns the row
  // after the last of them.
  template <class F, class G>
  int64_t bands(F f, G left) {
    int64_t row = first_;
    while (row < end_ && width(row) > 0) {
      const Band next = band_of(row);
      const int64_t max_rows = windowed(next) ? Shared::kRows : ColumnTile::kRows;
      int64_t count = 1;
      while (count < max_rows && row + count < end_ && width(row + count) > 0 &&
             band_of(row + count) == next) {
        ++count;
      }
      if (next != band_) {
        if (windowed(band_)) left(next);
        advance(next);
      }
      f(row, count);
      row += count;
    }
    return row;
  }

  // Makes the sums of the band of a row, for a group that follows the bands of another one.
  void enter(int64_t row) {
    const Band next = band_of(row);
    if (next != band_) advance(next);
  }

  // to [heads, kRows, padded] = q of the rows from `first` on, times factor(head).
  template <class Factor>
  void load_queries(int64_t first, int64_t count, Factor factor, T* to) const {
    for (int64_t h = 0; h < at_.task_heads(); ++h, to += Shared::kRows * at_.padded) {
      const T* from = at_.q + (head(h) * at_.queries + first * at_.step) * at_.m;
      const T by = factor(head(h));
      for (int64_t r = 0; r < count; ++r, from += at_.step * at_.m) {
        T* row = to + r * at_.padded;
#pragma omp simd
        for (int64_t i = 0; i < at_.m; ++i) row[i] = by * from[i];
        std::fill(row + at_.m, row + at_.padded, T(0));
      }
    }
  }

  // y = the products of these rows; that of head h and row r is [K] at y + h of_head + r K.
  void products(int64_t first, int64_t count, const T* q, T* y, int64_t of_head) {
    auto tile = [&](int64_t h) { tile_.products(y + h * of_head); };
    auto strip = [&](std::span<const Cell> cells, int64_t c, int64_t columns,
                     const int64_t* offset) {
      for (size_t i = 0; i < cells.size(); i += kSharedQueries) {
        const int64_t n = std::min(kSharedQueries, int64_t(cells.size() - i));
        const T* queries[kSharedQueries];
        Vector<T> dots[kSharedQueries];
        for (int64_t j = 0; j < n; ++j) {
          const Cell& at = cells[i + size_t(j)];
          queries[j] = q + (at.head * Shared::kRows + at.row) * at_.padded;
        }
        column_dots(queries, n, sums_, offset, at_.padded, dots);
        for (int64_t j = 0; j < n; ++j) {
          const Cell& at = cells[i + size_t(j)];
          T* to = y + at.head * of_head + at.row * at_.K + c;
          if (columns == Shared::kWide) {
            store(to, dots[j]);
          } else {
            for (int64_t l = 0; l < columns; ++l) to[l] = dots[j][l];
          }
        }
      }
    };
    each_head(first, count, q, tile, strip);
    each_rest(first, count, [&](int64_t h, int64_t r, int64_t, int64_t) {
      const T* query = q + (h * Shared::kRows + r) * at_.padded;
      T sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < at_.padded; ++i) sum += query[i] * rest_[size_t(i)];
      y[h * of_head + r * at_.K + at_.K - 1] += sum;
    });
  }

  // dq [heads, kRows, padded] += slopes [heads, kRows, K] times sums; the gradients of the sums, of
  // windows or of prefixes, += slopes times q.
  void spread(int64_t first, int64_t count, const T* q, const T* slopes, T* dq, T* grads,
              double* dprefix) {
    auto tile = [&](int64_t h) {
      const int64_t row = h * Shared::kRows;
      tile_.spread(slopes + row * at_.K, dq + row * at_.padded, dprefix);
    };
    auto strip = [&](std::span<const Cell> cells, int64_t c, int64_t columns,
                     const int64_t* offset) {
      for (const Cell& at : cells) {
        const int64_t row = at.head * Shared::kRows + at.row;
        column_spread(dq + row * at_.padded, q + row * at_.padded, slopes + row * at_.K + c, sums_,
                      grads, offset, columns, at_.padded);
      }
    };
    each_head(first, count, q, tile, strip);
    each_rest(first, count, [&](int64_t h, int64_t r, int64_t from, int64_t w) {
      const int64_t row = h * Shared::kRows + r;
      const T slope = slopes[row * at_.K + at_.K - 1];
      const T* query = q + row * at_.padded;
      T* to = dq + row * at_.padded;
      double *before = dprefix + from * at_.padded, *after = dprefix + w * at_.padded;
#pragma omp simd
      for (int64_t i = 0; i < at_.padded; ++i) {
        to[i] += slope * rest_[size_t(i)];
        const double by = double(slope) * double(query[i]);
        before[i] -= by;
        after[i] += by;
      }
    });
  }

  // The gradients of the band's windows, of n units or with `longer` of n + 1, go to those of the
  // prefix sums; they are 0 then. `grads` have the layout of the sums.
  void flush(bool longer, T* grads, double* dprefix) const {
    T* windows = grads + (longer ? long_ : short_);
    const int64_t units = band_.units + longer;
    if (units == 0) return;  // such columns have no gradient
    each_start(units, 0, [&](int64_t j) {
      T* g = windows + j * at_.padded;
      double* before = dprefix + j * band_.unit * at_.padded;
      double* after = before + units * band_.unit * at_.padded;
#pragma omp simd
      for (int64_t i = 0; i < at_.padded; ++i) {
        before[i] -= double(g[i]);
        after[i] += double(g[i]);
        g[i] = 0;
      }
    });
  }

  const Band& band() const { return band_; }
  // Whether the rows of a band use windows; no rows: they do not.
  bool windowed(const Band& b) const {
    return b.units >= 0 && b.units <= at_.longest_window(b.unit);
  }
  // Whether the longer windows are the shorter ones of the next band.
  bool follows(const Band& next) const {
    return windowed(band_) && windowed(next) && next.unit == band_.unit &&
           next.units == band_.units + 1;
  }

  // Keys that a row sees.
  int64_t width(int64_t row) const {
    const int64_t t = position(row);
    return t >= length_ ? 0 : (at_.widths.causal ? t + 1 : length_);
  }

 private:
  int64_t position(int64_t row) const { return at_.widths.first + row * at_.step; }

  Band band_of(int64_t row) const {
    const int64_t w = width(row), unit = at_.unit_of(w);
    return {unit, w / unit / at_.K};
  }

  // f(j) for every start, from `first` on, of a window of `units` units that a row of this band may
  // have. The rows of a bidirectional model have one set of columns.
  template <class F>
  void each_start(int64_t units, int64_t first, F f) const {
    if (at_.widths.causal) {
      for (int64_t j = first; j <= seen_ - units; ++j) f(j);
      return;
    }
    for (int64_t c = 0; c < at_.K; ++c) {
      int32_t begin[2];
      column_starts(begin, length_ / band_.unit, at_.K, c, 2);
      if (begin[1] - begin[0] == units) f(begin[0]);
    }
  }

  // f(head, row, from, w) for the rows of windows that see w keys, of which those from `from` on
  // are less than a unit; rest_ is the sum of these.
  template <class F>
  void each_rest(int64_t first, int64_t count, F f) {
    if (!windowed(band_) || band_.unit == 1) return;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t w = width(first + r), from = w - w % band_.unit;
      if (from == w) continue;
      const double *sum = prefix_ + w * at_.padded, *before = prefix_ + from * at_.padded;
#pragma omp simd
      for (int64_t i = 0; i < at_.padded; ++i) rest_[size_t(i)] = T(sum[i] - before[i]);
      for (int64_t h = 0; h < at_.task_heads(); ++h) f(h, r, from, w);
    }
  }

  void load_tile(int64_t first, int64_t count, int64_t h, const T* q) {
    if (first == loaded_row_ && h == loaded_head_) return;
    if (first != loaded_row_) {
      for (int64_t r = 0; r < count; ++r) {
        at_.fill_starts(width(first + r), 0, tile_.borders(), tile_.begin(r));
      }
    }
    loaded_row_ = first;
    loaded_head_ = h;
    tile_.load(count, q + h * Shared::kRows * at_.padded);
  }

  // A row of a head.
  struct Cell {
    int64_t head, row;
  };

  // For these rows and all heads: tile(head) with its rows in the tile, or strip(rows with the same
  // windows, first column, columns, where their sums are). Rows of all heads that see as many units
  // have the same windows.
  template <class Tile, class Strip>
  void each_head(int64_t first, int64_t count, const T* q, Tile tile, Strip strip) {
    if (!windowed(band_)) {
      for (int64_t h = 0; h < at_.task_heads(); ++h) {
        load_tile(first, count, h, q);
        tile(h);
      }
      return;
    }
    // By rows with the same windows: where they begin in cells_, and the units that they see.
    cells_.clear();
    begin_.clear();
    for (int64_t r = 0, end = 0; r < count; r = end) {
      const int64_t units = width(first + r) / band_.unit;
      for (end = r + 1; end < count && width(first + end) / band_.unit == units;) ++end;
      begin_.push_back({cells_.size(), units});
      for (int64_t h = 0; h < at_.task_heads(); ++h) {
        for (int64_t i = r; i < end; ++i) cells_.push_back({h, i});
      }
    }
    begin_.push_back({cells_.size(), 0});
    constexpr int64_t W = Shared::kWide;
    int64_t offset[W];
    for (int64_t c = 0; c < at_.K; c += W) {
      const int64_t columns = std::min(W, at_.K - c);
      for (size_t i = 0; i + 1 < begin_.size(); ++i) {
        offsets(begin_[i].units, c, offset);
        const size_t from = begin_[i].cell;
        strip(std::span<const Cell>(cells_).subspan(from, begin_[i + 1].cell - from), c, columns,
              offset);
      }
    }
  }

  // Windows of `units` units that start at unit `first` or later.
  void fill(int64_t units, int64_t first, T* sums) const {
    each_start(units, first, [&](int64_t j) {
      const double* from = prefix_ + j * band_.unit * at_.padded;
      const double* to = from + units * band_.unit * at_.padded;
      T* sum = sums + j * at_.padded;
#pragma omp simd
      for (int64_t i = 0; i < at_.padded; ++i) sum[i] = T(to[i] - from[i]);
    });
  }

  // Makes the windows of the band, if it has them. Those of n units exist if the last band had
  // windows of n - 1 and n.
  void advance(const Band& next) {
    const int64_t made = follows(next) ? seen_ - next.units + 1 : 0;
    band_ = next;
    seen_ = std::min(keys_seen_ / next.unit, (next.units + 1) * at_.K);
    if (!windowed(next)) return;
    std::swap(short_, long_);
    fill(next.units, made, sums_ + short_);
    fill(next.units + 1, 0, sums_ + long_);
  }

  // Where the sums of the columns from c on are, for a row that sees w units.
  void offsets(int64_t w, int64_t c, int64_t* offset) const {
    // Two whole vectors: a rest of one column costs as much as all products of this row.
    int32_t first[Shared::kWide], next[Shared::kWide];
    column_starts(first, w, at_.K, c, Shared::kWide);
    column_starts(next, w, at_.K, c + 1, Shared::kWide);
    const int32_t fewer = int32_t(band_.units);
#pragma omp simd
    for (int64_t i = 0; i < Shared::kWide; ++i) {
      offset[i] = int64_t(first[i]) * at_.padded + (next[i] - first[i] == fewer ? short_ : long_);
    }
  }

  const Shared& at_;
  int64_t group_, first_, end_, length_, keys_seen_;
  double* prefix_;            // [keys_seen + 1, padded]: row j = the sum of the keys before j
  T* sums_;                   // two window_array()s
  int64_t short_ = 0, long_;  // where those of n and of n + 1 units begin
  struct Begin {
    size_t cell;
    int64_t units;
  };
  std::vector<Cell> cells_;   // of each_head()
  std::vector<Begin> begin_;  // the same
  std::vector<T> rest_;       // [padded]: sum of the keys of a row that are less than a unit
  Band band_ = {};
  int64_t seen_ = 0;  // units that the last row of the band sees, at most
  ColumnTile tile_;
  int64_t loaded_row_ = -1, loaded_head_ = -1;  // what the tile has
};

}  // namespace brine::BRINE_CPU
