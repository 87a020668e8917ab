// What the slow references of the estimator's ops share: lengths, widths of rows.
#pragma once

#include <vector>

#include "tests/gradcheck.h"

namespace brine::test {

using Values = std::vector<double>;

// Keys that query t of a sequence of length L sees.
inline int64_t width(bool causal, int64_t L, int64_t t) {
  return t >= L ? 0 : (causal ? t + 1 : L);
}

inline Tensor lengths_of(const std::vector<int64_t>& values) {
  return values.empty() ? Tensor() : Tensor::from(values, {int64_t(values.size())});
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
