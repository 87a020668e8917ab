// What the slow references of the estimator's ops share: lengths, widths of rows.
#pragma once

#include <utility>
#include <vector>

#include "autograd/ops.h"
#include "tests/autograd/naive.h"
#include "tests/gradcheck.h"

namespace brine::test {

// Keys that query t of a sequence of length L sees.
inline int64_t width(bool causal, int64_t L, int64_t t) {
  return t >= L ? 0 : (causal ? t + 1 : L);
}

// The keys [first, end) whose sum is column c of a row that sees w keys (docs/method.md section
// 1.6): counted in units of 1, 2, 4, .. keys, of which every column has `units`; the last column
// also has the keys that are less than a unit.
inline std::pair<int64_t, int64_t> keys_of_column(int64_t c, int64_t w, int64_t K, int64_t units) {
  int64_t unit = 1;
  for (int64_t wide = 2; units > 0 && w / wide >= units * K; wide *= 2) unit = wide;
  const int64_t seen = w / unit;
  const int64_t first = (2 * c * seen + K) / (2 * K), end = (2 * (c + 1) * seen + K) / (2 * K);
  return {first * unit, c + 1 == K ? w : end * unit};
}

// f(keys) of the keys [first, end) that column c of row t has, for columns [.., K] of rows
// [B, H, R = T / step rounded up]; f(at, t, w, first, end) of a row that sees w keys, 0 without
// keys.
template <class F>
Values of_columns(const Coordinates& shape, int64_t T, bool causal,
                  const std::vector<int64_t>& lengths, ColumnGrid grid, F f) {
  return tabulate(shape, [&](const Coordinates& at) {
    const int64_t t = at[2] * grid.step;
    const int64_t w = width(causal, lengths.empty() ? T : lengths[size_t(at[0])], t);
    const auto [first, end] = keys_of_column(at[3], w, shape[3], grid.units);
    return end > first ? f(at, t, w, first, end) : 0.0;
  });
}

// B sequences of T tokens with H heads of d numbers, m random features.
struct EstimatorSizes {
  int64_t B, H, T, m, d;
};

// Row at[b] of each sequence b of x [B, H, T, C] -> [B, H, 1, C].
inline Tensor rows_at(const Tensor& x, const std::vector<int64_t>& at) {
  Tensor rows = Tensor::empty({x.dim(0), x.dim(1), 1, x.dim(3)}, x.dtype());
  for (int64_t b = 0; b < x.dim(0); ++b) {
    assign(rows.slice(0, b, 1), x.slice(0, b, 1).slice(2, at[size_t(b)], 1));
  }
  return rows;
}

}  // namespace brine::test
