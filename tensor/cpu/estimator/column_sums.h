// Products of queries with the sums of keys over columns, and their gradients, for one head: what
// the prior and the scores of mean keys have in common.
//
// A row that sees w keys has columns of n = floor(w / K) keys and of n + 1. Rows with the same n
// are a band: neighbours of K rows in a causal model. The sums of n and of n + 1 consecutive keys
// from every start that the band needs are differences of f64 prefix sums, rounded once, so that a
// column of small mass among large ones keeps its digits and the products need no wider type. Rows
// of a band visit a few columns at a time, whose sums thus stay in the caches. A band makes up to
// w sums of each kind for its K rows: from a length on they cost more than they save, and the rows
// take the prefix sums themselves (column_tile.h).
#pragma once

#include <vector>

#include "tensor/cpu/core/pieces.h"
#include "tensor/cpu/estimator/column_products.h"
#include "tensor/cpu/estimator/column_tile.h"
#include "tensor/csr.h"

namespace brine::BRINE_CPU {

// The data that all heads of a call share. Row r is that of query t = r step.
template <class T>
struct ColumnSums {
  static constexpr int64_t kWide = kWidth<T>;  // columns at a time
  static constexpr int64_t kRows = 256;        // of a band at a time

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
        padded((m + kWide - 1) / kWide * kWide),
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
  // Keys of the longest columns whose rows use windows: measured, for one head of 64 numbers.
  int64_t longest_window() const { return widths.causal ? K / (8 * step) : tokens; }
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

// Memory for the heads that run at the same time.
template <class T>
struct ColumnMemory {
  ColumnMemory(const ColumnSums<T>& at, bool backward)
      : wide(at.all(), (backward ? 2 : 1) * at.array()),
        own(at.all(), (backward ? 4 : 2) * at.window_array() +
                          at.kRows * ((backward ? 2 : 1) * at.padded + (backward ? at.K : 0))) {}
  PieceMemory<double> wide;
  PieceMemory<T> own;
};

// One head of a call, band by band.
template <class T>
class ColumnHead {
 public:
  using Shared = ColumnSums<T>;

  // `wide` and `own` as ColumnMemory has them.
  ColumnHead(const Shared& shared, int64_t n, double* wide, T* own)
      : at_(shared),
        n_(n),
        length_(shared.length(n)),
        prefix_(wide),
        sums_(own),
        short_(0),
        long_(at_.window_array()),
        tile_(wide, at_.K, at_.padded) {
    const int64_t keys = length_, padded = at_.padded;
    std::fill(wide, wide + padded, 0.0);
    const T* key = at_.k + at_.group(n) * at_.tokens * at_.m;
    for (int64_t j = 0; j < keys; ++j, key += at_.m, wide += padded) {
      double* next = wide + padded;
#pragma omp simd
      for (int64_t i = 0; i < at_.m; ++i) next[i] = wide[i] + double(key[i]);
      for (int64_t i = at_.m; i < padded; ++i) next[i] = 0;
    }
  }

  // Calls f(first, count) for pieces of the rows that see keys, whose sums then are in place;
  // `left(n)` before the windows of a band are replaced by those of n and n + 1 keys. Returns the
  // number of these rows.
  template <class F, class G>
  int64_t bands(F f, G left) {
    int64_t row = 0;
    while (row < at_.rows && width(row) > 0) {
      const int64_t keys = width(row) / at_.K;
      const int64_t most = windowed(keys) ? Shared::kRows : ColumnTile::kRows;
      int64_t count = 1;
      while (count < most && row + count < at_.rows && width(row + count) > 0 &&
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

  // q [count, padded] of the rows from `first` on.
  void load_queries(int64_t first, int64_t count, T* to) const {
    const T* from = at_.q + (n_ * at_.tokens + first * at_.step) * at_.m;
    for (int64_t r = 0; r < count; ++r, from += at_.step * at_.m, to += at_.padded) {
      std::copy_n(from, at_.m, to);
      std::fill(to + at_.m, to + at_.padded, T(0));
    }
  }

  // y [count, K] = the products of these rows.
  void products(int64_t first, int64_t count, const T* q, T* y) {
    if (!windowed(keys_)) {
      load_tile(first, count, q);
      return tile_.products(y);
    }
    int64_t offset[Shared::kWide];
    for (int64_t c = 0; c < at_.K; c += Shared::kWide) {
      const int64_t columns = std::min(Shared::kWide, at_.K - c);
      for (int64_t r = 0; r < count; ++r) {
        offsets(width(first + r), c, offset);
        const Vector<T> dots = column_dots(q + r * at_.padded, sums_, offset, at_.padded);
        T* to = y + r * at_.K + c;
        if (columns == Shared::kWide) {
          store(to, dots);
        } else {
          for (int64_t i = 0; i < columns; ++i) to[i] = dots[i];
        }
      }
    }
  }

  // dq [count, padded] += slopes [count, K] times sums; the gradients of the sums, of windows or of
  // prefixes, += slopes times q.
  void spread(int64_t first, int64_t count, const T* q, const T* slopes, T* dq, T* grads,
              double* dprefix) {
    if (!windowed(keys_)) {
      load_tile(first, count, q);
      return tile_.spread(slopes, dq, dprefix);
    }
    int64_t offset[Shared::kWide];
    for (int64_t c = 0; c < at_.K; c += Shared::kWide) {
      const int64_t columns = std::min(Shared::kWide, at_.K - c);
      for (int64_t r = 0; r < count; ++r) {
        offsets(width(first + r), c, offset);
        column_spread(dq + r * at_.padded, q + r * at_.padded, slopes + r * at_.K + c, sums_, grads,
                      offset, columns, at_.padded);
      }
    }
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

  void load_tile(int64_t first, int64_t count, const T* q) {
    if (first == loaded_) return;
    loaded_ = first;
    tile_.load(count, q);
    for (int64_t r = 0; r < count; ++r) {
      at_.place(width(first + r), 0, tile_.borders(), tile_.begin(r));
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
    seen_ = std::min(length_, (keys + 1) * at_.K);
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
  int64_t n_, length_;
  double* prefix_;        // [length + 1, padded]: row j = the sum of the keys before j
  T* sums_;               // two window_array()s
  int64_t short_, long_;  // where those of n and of n + 1 keys begin
  int64_t keys_ = -1;     // n of the windows
  int64_t seen_ = 0;      // keys that the band's last row sees, at most
  ColumnTile tile_;
  int64_t loaded_ = -1;  // the first row of those that the tile has
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

// y [R, K] = the products of head n. finish(r, starts, row) follows for each row that sees keys,
// unseen(r, row) for the others.
template <class T, class Finish, class Unseen>
void column_products(const ColumnSums<T>& at, int64_t n, const ColumnMemory<T>& memory, T* y,
                     Finish finish, Unseen unseen) {
  const auto wide = memory.wide.lease();
  const auto own = memory.own.lease();
  ColumnHead<T> head(at, n, wide.data(), own.data());
  T* q = own.data() + 2 * at.window_array();
  std::vector<int32_t> starts(size_t(at.K + 1));
  auto band = [&](int64_t first, int64_t count) {
    head.load_queries(first, count, q);
    head.products(first, count, q, y + first * at.K);
    for (int64_t r = first; r < first + count; ++r) {
      at.place(head.width(r), 0, at.K + 1, starts.data());
      finish(r, starts.data(), y + r * at.K);
    }
  };
  const int64_t seen = head.bands(band, [](int64_t) {});
  for (int64_t r = seen; r < at.rows; ++r) unseen(r, y + r * at.K);
}

// dk [T, m] from the gradients of the prefix sums: key j is in every prefix after it.
template <class T>
void keys_of_prefixes(const ColumnSums<T>& at, int64_t length, double* dprefix, T* dk) {
  double* later = dprefix + length * at.padded;
  for (int64_t j = length - 1; j >= 0; --j, later -= at.padded) {
    for (int64_t i = 0; i < at.m; ++i) dk[j * at.m + i] = T(later[i]);
    if (j == 0) break;
    double* here = later - at.padded;
#pragma omp simd
    for (int64_t i = 0; i < at.padded; ++i) here[i] += later[i];
  }
  std::fill(dk + length * at.m, dk + at.tokens * at.m, T(0));
}

// Gradients of the queries dq [T, m] and keys dk [T, m] of head n. slope(r, starts, row) makes the
// derivatives with respect to the products of a row that sees keys; before that `row` [K] contains
// the products if `multiplied`.
template <bool multiplied, class T, class Slope>
void column_products_backward(const ColumnSums<T>& at, int64_t n, const ColumnMemory<T>& memory,
                              T* dq, T* dk, Slope slope) {
  const auto wide = memory.wide.lease();
  const auto own = memory.own.lease();
  ColumnHead<T> head(at, n, wide.data(), own.data());
  const int64_t length = at.length(n), band_size = at.kRows * at.padded;
  double* dprefix = wide.data() + at.array();
  std::fill(dprefix, dprefix + (length + 1) * at.padded, 0.0);
  T* grads = own.data() + 2 * at.window_array();
  std::fill(grads, grads + 2 * at.window_array(), T(0));
  T *q = grads + 2 * at.window_array(), *dquery = q + band_size, *rows = dquery + band_size;
  std::vector<int32_t> starts(size_t(at.K + 1));
  std::fill(dq, dq + at.tokens * at.m, T(0));
  auto band = [&](int64_t first, int64_t count) {
    head.load_queries(first, count, q);
    if constexpr (multiplied) head.products(first, count, q, rows);
    for (int64_t r = 0; r < count; ++r) {
      at.place(head.width(first + r), 0, at.K + 1, starts.data());
      slope(first + r, starts.data(), rows + r * at.K);
    }
    std::fill_n(dquery, count * at.padded, T(0));
    head.spread(first, count, q, rows, dquery, grads, dprefix);
    for (int64_t r = 0; r < count; ++r) {
      std::copy_n(dquery + r * at.padded, at.m, dq + (first + r) * at.step * at.m);
    }
  };
  auto left = [&](int64_t next) {
    head.flush(head.keys(), grads, dprefix);
    if (!head.follows(next)) head.flush(head.keys() + 1, grads, dprefix);
  };
  head.bands(band, left);
  if (head.windowed(head.keys())) left(-1);
  keys_of_prefixes(at, length, dprefix, dk);
}

}  // namespace brine::BRINE_CPU
