// Products of the query of one new token with the sums of keys over columns. Only the sums at the
// borders of columns are kept. A border moves by one key at a time, or by a unit of keys every so
// many tokens, which are added: the same additions in the same order as in the prefix sums of the
// full pass.
#pragma once

#include <algorithm>
#include <vector>

#include "tensor/cpu/core/columns.h"
#include "tensor/cpu/estimator/prior_row.h"
#include "tensor/parallel.h"

namespace brine::BRINE_CPU {

// sum += keys first .. last.
template <class T>
void add_keys(double* sum, const T* keys, int64_t first, int64_t last, int64_t m) {
  for (const T* key = keys + first * m; first < last; ++first, key += m) {
#pragma omp simd
    for (int64_t i = 0; i < m; ++i) sum[i] += double(key[i]);
  }
}

// Where the borders of a sequence were, if they are set, and where they move to: first keys,
// [K + 1] each.
struct BorderMove {
  BorderMove(int64_t from_width, int64_t width, int64_t K, int64_t units)
      : fresh(from_width == 0), from(borders(from_width, K, units)), to(borders(width, K, units)) {}

  static std::vector<int32_t> borders(int64_t w, int64_t K, int64_t units) {
    std::vector<int32_t> first(size_t(K + 1));
    sum_starts(first.data(), w, K, math::unit_of_sums(w, K, units), 0, K + 1);
    return first;
  }

  bool fresh;
  std::vector<int32_t> from, to;
};

// Moves the borders of one group of keys, sums [K + 1, padded].
template <class T>
void move_borders(double* sums, const T* keys, const BorderMove& move, int64_t m, int64_t padded) {
  const size_t borders = move.to.size();
  // The keys that borders pass are far apart in memory: prefetch all of them.
  for (size_t c = 0; c < borders && !move.fresh; ++c) {
    if (move.from[c] == move.to[c]) continue;
    const T* key = keys + move.from[c] * m;
    for (int64_t i = 0; i < m; i += 64 / int64_t(sizeof(T))) __builtin_prefetch(key + i);
  }
  for (size_t c = 0; c < borders; ++c, sums += padded) {
    if (!move.fresh) {
      add_keys(sums, keys, move.from[c], move.to[c], m);
    } else if (c == 0) {
      std::fill_n(sums, padded, 0.0);
    } else {
      std::copy_n(sums - padded, padded, sums);
      add_keys(sums, keys, move.to[c - 1], move.to[c], m);
    }
  }
}

// borders f64 [B, G, K + 1, padded] move from at[b] to width[b] keys of k [B, G, S, m], and so does
// at. finish(head, begin, w, products) for every head b H + h of q [B, H, 1, m]: the products [K]
// with the sums over columns, which it may change.
template <class T, class Finish>
void column_products_step(const Tensor& borders, const Tensor& at, const Tensor& q, const Tensor& k,
                          const Tensor& width, int64_t units, Finish finish) {
  const int64_t B = q.dim(0), H = q.dim(1), G = k.dim(1), m = q.dim(3), S = k.dim(2);
  const int64_t K = borders.dim(2) - 1, padded = borders.dim(3), own = H / G;
  const int64_t *now = at.data<int64_t>(), *then = width.data<int64_t>();
  std::vector<BorderMove> moves;
  moves.reserve(size_t(B));
  for (int64_t b = 0; b < B; ++b) moves.emplace_back(now[b], then[b], K, units);
  parallel_for(B * G, B * H * K * m < (1 << 15) ? B * G : 1, [&](int64_t first, int64_t end) {
    std::vector<double> query(size_t(padded), 0.0), below(size_t(K + 4), 0.0);
    std::vector<T> products(size_t(K), T(0));
    for (int64_t g = first; g < end; ++g) {
      double* sums = borders.data<double>() + g * (K + 1) * padded;
      const BorderMove& move = moves[size_t(g / G)];
      move_borders(sums, k.data<T>() + g * S * m, move, m, padded);
      for (int64_t n = g * own; n < (g + 1) * own; ++n) {
        std::copy_n(q.data<T>() + n * m, m, query.data());
        // Before border 0 there are no keys.
        for (int64_t c = 1; c <= K; c += 4) {
          auto row = [&](int64_t i) { return sums + std::min(c + i, K) * padded; };
          dot4(query.data(), row(0), row(1), row(2), row(3), padded, below.data() + c);
        }
        for (int64_t c = 0; c < K; ++c) {
          products[size_t(c)] = T(below[size_t(c + 1)] - below[size_t(c)]);
        }
        finish(n, move.to.data(), then[g / G], products.data());
      }
    }
  });
  std::copy_n(then, B, at.data<int64_t>());
}

}  // namespace brine::BRINE_CPU
