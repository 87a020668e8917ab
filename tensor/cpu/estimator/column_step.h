// Products of the query of one new token with the sums of keys over columns. Only the sums at the
// borders of columns are kept. A border moves by one key at a time, or by a unit of keys every so
// many tokens, which are added. Rows may be stored in 16 bits (S).
#pragma once

#include <algorithm>
#include <vector>

#include "tensor/base/math.h"
#include "tensor/base/parallel.h"
#include "tensor/base/stored.h"
#include "tensor/cpu/core/columns.h"
#include "tensor/cpu/core/fold.h"

namespace brine::BRINE_CPU {

// sum += rows first .. last.
template <class S>
void add_rows(double* sum, const S* rows, int64_t first, int64_t last, int64_t m) {
  for (const S* row = rows + first * m; first < last; ++first, row += m) {
#pragma omp simd
    for (int64_t i = 0; i < m; ++i) sum[i] += widened(row[i]);
  }
}

// A row of the tensor that is summed: a key, or the sum over a unit of keys, which doubles.
enum class StepRows : uint8_t { keys, units };

// Where the borders of a sequence were, if they are set, and where they move to, in rows.
struct BorderMove {
  BorderMove(int64_t before, int64_t width, int64_t K, int64_t units, StepRows rows)
      : unit(math::unit_of_sums(width, K, units)),
        begin(size_t(K + 1)),
        from(size_t(K + 1)),
        to(size_t(K + 1)) {
    const int64_t unit_before = math::unit_of_sums(before, K, units);
    sum_starts(begin.data(), width, K, unit, 0, K + 1);
    fresh = before == 0;
    if (rows == StepRows::keys) {
      to = begin;
      sum_starts(from.data(), before, K, unit_before, 0, K + 1);
      return;
    }
    fresh = fresh || unit != unit_before;
    column_starts(to.data(), width / unit, K);
    column_starts(from.data(), before / unit, K);
    if (width % unit) rest = width / unit;
  }

  int64_t unit;
  bool fresh;
  int64_t rest = -1;           // the row of a unit that is not complete, which no border counts
  std::vector<int32_t> begin;  // [K + 1] first keys of the columns
  std::vector<int32_t> from, to;
};

// Moves the borders of one group of keys, sums [K + 1, padded].
template <class S>
void move_borders(double* sums, const S* rows, const BorderMove& move, int64_t m, int64_t padded) {
  const size_t borders = move.to.size();
  // The rows that borders pass are far apart in memory: prefetch all of them.
  for (size_t c = 0; c < borders && !move.fresh; ++c) {
    if (move.from[c] == move.to[c]) continue;
    const S* row = rows + move.from[c] * m;
    for (int64_t i = 0; i < m; i += 64 / int64_t(sizeof(S))) __builtin_prefetch(row + i);
  }
  for (size_t c = 0; c < borders; ++c, sums += padded) {
    if (!move.fresh) {
      add_rows(sums, rows, move.from[c], move.to[c], m);
    } else if (c == 0) {
      std::fill_n(sums, padded, 0.0);
    } else {
      std::copy_n(sums - padded, padded, sums);
      add_rows(sums, rows, move.to[c - 1], move.to[c], m);
    }
  }
}

// out[h stride + i] = q[h] . sums[c + i] for as many i as a vector has lanes; borders beyond K are
// K. A product has the same bits whatever the number of heads.
template <int heads>
void border_products(double* out, int64_t stride, const double* q, const double* sums, int64_t c,
                     int64_t K, int64_t padded) {
  constexpr int W = kWidth<double>;
  const double* row[W];
  for (int i = 0; i < W; ++i) row[i] = sums + std::min(c + i, K) * padded;
  Vector<double> sum[heads][W] = {};
  for (int64_t f = 0; f < padded; f += W) {
    Vector<double> x[heads];
#pragma GCC unroll 4
    for (int h = 0; h < heads; ++h) x[h] = load(q + h * padded + f);
#pragma GCC unroll 8
    for (int i = 0; i < W; ++i) {
      const Vector<double> y = load(row[i] + f);
#pragma GCC unroll 4
      for (int h = 0; h < heads; ++h) sum[h][i] += x[h] * y;
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < heads; ++h) {
    store(out + h * stride, folded<double>([&](int i) { return sum[h][i]; }));
  }
}

// The same for all borders from 1 on and any number of heads.
inline void border_products(double* out, int64_t stride, const double* q, const double* sums,
                            int64_t heads, int64_t K, int64_t padded) {
  constexpr int kMaxHeads = 3;  // whose sums stay in registers
  for (int64_t h = 0; h < heads; h += kMaxHeads) {
    const double* x = q + h * padded;
    double* y = out + h * stride;
    for (int64_t c = 1; c <= K; c += kWidth<double>) {
      switch (std::min<int64_t>(kMaxHeads, heads - h)) {
        case 1:
          border_products<1>(y + c, stride, x, sums, c, K, padded);
          break;
        case 2:
          border_products<2>(y + c, stride, x, sums, c, K, padded);
          break;
        default:
          border_products<kMaxHeads>(y + c, stride, x, sums, c, K, padded);
      }
    }
  }
}

// borders f64 [B, G, K + 1, padded] move from at[b] to width[b] keys, whose rows are k [B, G, R,
// m], and so does at. finish(head, move, w, products) for every head b H + h of q [B, H, 1, m]: the
// products [K] with the sums over columns, which it may change.
template <class T, class S, class Finish>
void column_products_step(const Tensor& borders, const Tensor& at, const Tensor& q, const Tensor& k,
                          const Tensor& width, int64_t units, StepRows rows, Finish finish) {
  const int64_t B = q.dim(0), H = q.dim(1), G = k.dim(1), m = q.dim(3), R = k.dim(2);
  const int64_t K = borders.dim(2) - 1, padded = borders.dim(3), group_heads = H / G;
  const int64_t *now = at.data<int64_t>(), *then = width.data<int64_t>();
  std::vector<BorderMove> moves;
  moves.reserve(size_t(B));
  for (int64_t b = 0; b < B; ++b) moves.emplace_back(now[b], then[b], K, units, rows);
  parallel_for(B * G, B * H * K * m < (1 << 15) ? B * G : 1, [&](int64_t first, int64_t end) {
    const int64_t stride = K + 1 + kWidth<double>;
    // Before border 0 there are no keys: below[h stride] stays 0.
    std::vector<double> query(size_t(group_heads * padded), 0.0),
        below(size_t(group_heads * stride), 0.0);
    std::vector<T> products(size_t(K), T(0));
    for (int64_t g = first; g < end; ++g) {
      double* sums = borders.data<double>() + g * (K + 1) * padded;
      const S* keys = k.data<S>() + g * R * m;
      const BorderMove& move = moves[size_t(g / G)];
      move_borders(sums, keys, move, m, padded);
      for (int64_t h = 0; h < group_heads; ++h) {
        std::copy_n(q.data<T>() + (g * group_heads + h) * m, m, query.data() + h * padded);
      }
      border_products(below.data(), stride, query.data(), sums, group_heads, K, padded);
      for (int64_t h = 0; h < group_heads; ++h) {
        double* cumulative = below.data() + h * stride;
        if (move.rest >= 0) {
          const T* x = q.data<T>() + (g * group_heads + h) * m;
          const S* row = keys + move.rest * m;
          for (int64_t i = 0; i < m; ++i) cumulative[K] += double(x[i]) * widened(row[i]);
        }
        for (int64_t c = 0; c < K; ++c) products[size_t(c)] = T(cumulative[c + 1] - cumulative[c]);
        finish(g * group_heads + h, move, then[g / G], products.data());
      }
    }
  });
  std::copy_n(then, B, at.data<int64_t>());
}

}  // namespace brine::BRINE_CPU
