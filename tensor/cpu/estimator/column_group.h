// The heads of one group of keys and a range of their rows, band by band (column_sums.h).
#pragma once

#include <algorithm>
#include <utility>

#include "tensor/cpu/estimator/column_products.h"
#include "tensor/cpu/estimator/column_sums.h"
#include "tensor/cpu/estimator/column_tile.h"

namespace brine::BRINE_CPU {

// Data of rows is [own, kRows, ..]: `own` heads, of which each has room for kRows rows.
template <class T>
class ColumnGroup {
 public:
  using Shared = ColumnSums<T>;

  // `wide` and `sums` as ColumnMemory has them.
  ColumnGroup(const Shared& shared, int64_t unit, double* wide, T* sums)
      : at_(shared),
        group_(unit / shared.parts),
        first_(shared.rows * (unit % shared.parts) / shared.parts),
        end_(shared.rows * (unit % shared.parts + 1) / shared.parts),
        length_(shared.widths.valid(group_ / shared.groups)),
        keys_seen_(at_.widths.causal
                       ? std::min(length_, std::max<int64_t>(0, (end_ - 1) * at_.step + 1))
                       : length_),
        prefix_(wide),
        sums_(sums),
        long_(at_.window_array()),
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

  int64_t group() const { return group_; }                          // b G + g
  int64_t head(int64_t h) const { return group_ * at_.own() + h; }  // b H + its head
  int64_t first_row() const { return first_; }
  int64_t end_row() const { return end_; }
  // Keys that the last row sees.
  int64_t keys_seen() const { return keys_seen_; }

  // Calls f(first, count) for pieces of the rows that see keys, whose sums then are in place;
  // `left(n)` before the windows of a band are replaced by those of n and n + 1 keys. Returns the
  // row after the last of them.
  template <class F, class G>
  int64_t bands(F f, G left) {
    int64_t row = first_;
    while (row < end_ && width(row) > 0) {
      const int64_t keys = width(row) / at_.K;
      const int64_t most = windowed(keys) ? Shared::kRows : ColumnTile::kRows;
      int64_t count = 1;
      while (count < most && row + count < end_ && width(row + count) > 0 &&
             width(row + count) / at_.K == keys) {
        ++count;
      }
      if (keys != keys_) {
        if (windowed(keys_)) left(keys);
        turn(keys);
      }
      f(row, count);
      row += count;
    }
    return row;
  }

  // to [own, kRows, padded] = q of the rows from `first` on, times factor(head).
  template <class Factor>
  void load_queries(int64_t first, int64_t count, Factor factor, T* to) const {
    for (int64_t h = 0; h < at_.own(); ++h, to += Shared::kRows * at_.padded) {
      const T* from = at_.q + (head(h) * at_.tokens + first * at_.step) * at_.m;
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
    auto strip = [&](int64_t h, int64_t r, int64_t c, int64_t columns, const int64_t* offset) {
      const T* query = q + (h * Shared::kRows + r) * at_.padded;
      const Vector<T> dots = column_dots(query, sums_, offset, at_.padded);
      T* to = y + h * of_head + r * at_.K + c;
      if (columns == Shared::kWide) {
        store(to, dots);
      } else {
        for (int64_t i = 0; i < columns; ++i) to[i] = dots[i];
      }
    };
    each_head(first, count, q, tile, strip);
  }

  // dq [own, kRows, padded] += slopes [own, kRows, K] times sums; the gradients of the sums, of
  // windows or of prefixes, += slopes times q.
  void spread(int64_t first, int64_t count, const T* q, const T* slopes, T* dq, T* grads,
              double* dprefix) {
    auto tile = [&](int64_t h) {
      const int64_t row = h * Shared::kRows;
      tile_.spread(slopes + row * at_.K, dq + row * at_.padded, dprefix);
    };
    auto strip = [&](int64_t h, int64_t r, int64_t c, int64_t columns, const int64_t* offset) {
      const int64_t row = h * Shared::kRows + r;
      column_spread(dq + row * at_.padded, q + row * at_.padded, slopes + row * at_.K + c, sums_,
                    grads, offset, columns, at_.padded);
    };
    each_head(first, count, q, tile, strip);
  }

  // The gradients of the windows of `keys` keys, `grads` with the layout of the sums, go to those
  // of the prefix sums; they are 0 then.
  void flush(int64_t keys, T* grads, double* dprefix) const {
    T* own = grads + (keys == keys_ ? short_ : long_);
    if (keys == 0) return;  // such columns have no gradient
    each_start(keys, 0, [&](int64_t j) {
      T* g = own + j * at_.padded;
      double *before = dprefix + j * at_.padded, *after = before + keys * at_.padded;
#pragma omp simd
      for (int64_t i = 0; i < at_.padded; ++i) {
        before[i] -= double(g[i]);
        after[i] += double(g[i]);
        g[i] = 0;
      }
    });
  }

  int64_t keys() const { return keys_; }
  // Whether rows whose columns have `keys` keys use windows; no rows: they do not.
  bool windowed(int64_t keys) const { return keys >= 0 && keys <= at_.longest_window(); }
  // Whether the longer windows are the shorter ones of a band of columns of `keys` keys.
  bool follows(int64_t keys) const {
    return windowed(keys_) && windowed(keys) && keys == keys_ + 1;
  }

  // Keys that a row sees.
  int64_t width(int64_t row) const {
    const int64_t t = row * at_.step;
    return t >= length_ ? 0 : (at_.widths.causal ? t + 1 : length_);
  }

 private:
  // f(j) for every start, from `first` on, of a window of `keys` keys that a row of this band may
  // have. The rows of a bidirectional model have one set of columns.
  template <class F>
  void each_start(int64_t keys, int64_t first, F f) const {
    if (at_.widths.causal) {
      for (int64_t j = first; j <= seen_ - keys; ++j) f(j);
      return;
    }
    for (int64_t c = 0; c < at_.K; ++c) {
      int32_t begin[2];
      at_.place(length_, c, 2, begin);
      if (begin[1] - begin[0] == keys) f(begin[0]);
    }
  }

  void load_tile(int64_t first, int64_t count, int64_t h, const T* q) {
    if (first == loaded_row_ && h == loaded_head_) return;
    if (first != loaded_row_) {
      for (int64_t r = 0; r < count; ++r) {
        at_.place(width(first + r), 0, tile_.borders(), tile_.begin(r));
      }
    }
    loaded_row_ = first;
    loaded_head_ = h;
    tile_.load(count, q + h * Shared::kRows * at_.padded);
  }

  // For these rows and all heads: tile(head) with its rows in the tile, or strip(head, row, first
  // column, columns, where their sums are). Heads come last: they share the sums while these are
  // near.
  template <class Tile, class Strip>
  void each_head(int64_t first, int64_t count, const T* q, Tile tile, Strip strip) {
    if (!windowed(keys_)) {
      for (int64_t h = 0; h < at_.own(); ++h) {
        load_tile(first, count, h, q);
        tile(h);
      }
      return;
    }
    constexpr int64_t W = Shared::kWide;
    int64_t offset[W];
    for (int64_t c = 0; c < at_.K; c += W) {
      const int64_t columns = std::min(W, at_.K - c);
      for (int64_t r = 0; r < count; ++r) {
        offsets(width(first + r), c, offset);
        for (int64_t h = 0; h < at_.own(); ++h) strip(h, r, c, columns, offset);
      }
    }
  }

  // Windows of `keys` keys that start at key `first` or later.
  void fill(int64_t keys, int64_t first, T* sums) const {
    each_start(keys, first, [&](int64_t j) {
      const double *from = prefix_ + j * at_.padded, *to = from + keys * at_.padded;
      T* sum = sums + j * at_.padded;
#pragma omp simd
      for (int64_t i = 0; i < at_.padded; ++i) sum[i] = T(to[i] - from[i]);
    });
  }

  // Makes the windows of n and n + 1 keys, if the band has them. Those of n are there if the last
  // band had n - 1 and n.
  void turn(int64_t keys) {
    const int64_t made = follows(keys) ? seen_ - keys + 1 : 0;
    keys_ = keys;
    seen_ = std::min(keys_seen_, (keys + 1) * at_.K);
    if (!windowed(keys)) return;
    std::swap(short_, long_);
    fill(keys, made, sums_ + short_);
    fill(keys + 1, 0, sums_ + long_);
  }

  // Where the sums of the columns from c on are, for a row that sees w keys.
  void offsets(int64_t w, int64_t c, int64_t* offset) const {
    // Two whole vectors: a rest of one column costs as much as all products of this row.
    int32_t first[Shared::kWide], next[Shared::kWide];
    at_.place(w, c, Shared::kWide, first);
    at_.place(w, c + 1, Shared::kWide, next);
    const int32_t fewer = int32_t(keys_);
#pragma omp simd
    for (int64_t i = 0; i < Shared::kWide; ++i) {
      offset[i] = int64_t(first[i]) * at_.padded + (next[i] - first[i] == fewer ? short_ : long_);
    }
  }

  const Shared& at_;
  int64_t group_, first_, end_, length_, keys_seen_;
  double* prefix_;                // [keys_seen + 1, padded]: row j = the sum of the keys before j
  T* sums_;                       // two window_array()s
  int64_t short_ = 0, long_;      // where those of n and of n + 1 keys begin
  int64_t keys_ = -1, seen_ = 0;  // n of the band; keys that its last row sees, at most
  ColumnTile tile_;
  int64_t loaded_row_ = -1, loaded_head_ = -1;  // what the tile has
};

}  // namespace brine::BRINE_CPU
