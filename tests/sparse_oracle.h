// Slow references of the mask and of attention under it, in f64, from the rules as they are
// written: full sorts, fractions, T x T maps. They share no code with the library.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "tensor/mask/csr.h"
#include "tests/gradcheck.h"

namespace brine::test {

// Sizes and lengths of a case; keys are columns of the maps, T of them.
struct MaskCase {
  int64_t B = 1, H = 2, T = 9, K = 4, k = 3;
  bool causal = true;
  std::vector<int64_t> lengths = {};  // empty: all T
  int64_t first = 0;                  // position of row 0
  SelectMode mode = SelectMode::causal_per_batch;

  int64_t length(int64_t b) const { return lengths.empty() ? T : lengths[size_t(b)]; }
  int64_t width(int64_t b, int64_t t) const {
    if (t >= length(b)) return 0;
    return causal ? t + 1 : length(b);
  }
  Visibility visible() const { return {causal, lengths_of(lengths), first}; }
  SelectConfig config() const { return {.k = k, .mode = mode}; }
  size_t index(int64_t b, int64_t h, int64_t t, int64_t c, int64_t last) const {
    return size_t(((b * H + h) * T + t) * last + c);
  }
  std::string name() const {
    return join("B", B, " H", H, " T", T, " K", K, " k", k, causal ? " causal " : " full ",
                name_of(mode), " lengths ", lengths.size());
  }
};

// f(b, h, t) for every row.
template <class F>
void each_row(const MaskCase& m, F f) {
  for (int64_t b = 0; b < m.B; ++b) {
    for (int64_t h = 0; h < m.H; ++h) {
      for (int64_t t = 0; t < m.T; ++t) f(b, h, t);
    }
  }
}

// The column of key j: the one whose span, w / K keys wide, starts nearest before j.
inline std::vector<int64_t> columns_of_keys(int64_t w, int64_t K) {
  std::vector<int64_t> column(static_cast<size_t>(w), 0);
  for (int64_t c = 0; c < K; ++c) {
    // b(c) = c w / K rounded half up.
    int64_t begin = int64_t(std::floor(double(c) * double(w) / double(K) + 0.5 + 1e-12));
    for (int64_t j = begin; j < w; ++j) column[size_t(j)] = c;
  }
  return column;
}

inline std::vector<int64_t> keys_per_column(int64_t w, int64_t K) {
  std::vector<int64_t> n(static_cast<size_t>(K), 0);
  for (int64_t c : columns_of_keys(w, K)) ++n[size_t(c)];
  return n;
}

inline FlatCsr mask_on(Device device, FlatCsr csr) {
  for (Tensor* part : {&csr.row_pointers, &csr.head_offsets, &csr.columns}) {
    *part = part->to(device);
  }
  return csr;
}

// Groups of rows (b, h, t) that share a budget, padded rows left out.
inline std::vector<std::vector<std::array<int64_t, 3>>> budget_groups(const MaskCase& m) {
  std::vector<std::vector<std::array<int64_t, 3>>> groups;
  auto group_of = [&](int64_t b, int64_t h, int64_t t) {
    switch (m.mode) {
      case SelectMode::per_query:
        return (b * m.H + h) * m.T + t;
      case SelectMode::causal_per_batch:
        return b * m.T + t;
      case SelectMode::per_head:
        return b * m.H + h;
      case SelectMode::per_batch:
        break;
    }
    return b;
  };
  each_row(m, [&](int64_t b, int64_t h, int64_t t) {
    auto g = size_t(group_of(b, h, t));
    if (g >= groups.size()) groups.resize(g + 1);
    if (m.width(b, t) > 0) groups[g].push_back({b, h, t});
  });
  return groups;
}

struct NaiveSelection {
  std::vector<double> selected, n_sel;
};

inline NaiveSelection naive_select(const std::vector<double>& estimate, const MaskCase& m) {
  NaiveSelection result{std::vector<double>(estimate.size(), 0), {}};
  for (const auto& group : budget_groups(m)) {
    struct Entry {
      double value;
      int64_t flat;
      size_t at;
    };
    std::vector<Entry> entries;
    // All rows of a group are equally wide: one row, or bidirectional rows of one sequence.
    double wanted = 0;
    for (auto [b, h, t] : group) {
      int64_t w = m.width(b, t);
      std::vector<int64_t> n = keys_per_column(w, m.K);
      for (int64_t c = 0; c < m.K; ++c) {
        if (n[size_t(c)] == 0) continue;
        size_t at = m.index(b, h, t, c, m.K);
        entries.push_back({estimate[at], (h * m.T + t) * m.K + c, at});
      }
      wanted += double(m.k * std::min(m.K, w)) / double(w);
    }
    // The nearest whole number; halves, which the sum of fractions hits only within rounding,
    // to the even neighbour.
    double doubled = 2 * wanted, whole = std::round(doubled);
    bool half = std::abs(doubled - whole) < 1e-6 && int64_t(whole) % 2 != 0;
    int64_t n = half ? int64_t(2 * std::round(wanted / 2)) : int64_t(std::round(wanted));
    n = std::clamp(n, int64_t(group.size()), int64_t(std::max(entries.size(), group.size())));
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return a.value != b.value ? a.value > b.value : a.flat > b.flat;
    });
    for (int64_t i = 0; i < n; ++i) result.selected[entries[size_t(i)].at] = 1;
    result.n_sel.push_back(double(n));
  }
  return result;
}

// [B, H, T, T]: 1 where the mask keeps a key.
inline std::vector<double> naive_mask(const std::vector<double>& selected, const MaskCase& m) {
  std::vector<double> mask(size_t(m.B * m.H * m.T * m.T), 0);
  each_row(m, [&](int64_t b, int64_t h, int64_t t) {
    int64_t w = m.width(b, t);
    std::vector<int64_t> column = columns_of_keys(w, m.K), size = keys_per_column(w, m.K);
    for (int64_t c = 0; c < m.K; ++c) {
      int64_t n = size[size_t(c)];
      if (n == 0 || selected[m.index(b, h, t, c, m.K)] == 0) continue;
      auto first = std::find(column.begin(), column.end(), c) - column.begin();
      for (int64_t i = 0; i < std::min(n, m.k); ++i) {
        int64_t back = n <= m.k ? i : i * n / m.k;
        mask[m.index(b, h, t, first + n - 1 - back, m.T)] = 1;
      }
    }
    for (int64_t j = 0; w <= m.k && j < w; ++j) mask[m.index(b, h, t, j, m.T)] = 1;
  });
  return mask;
}

// softmax(q k^T / sqrt d) over the keys with mask != 0, [B, H, T, T]; empty mask: visible keys.
inline std::vector<double> naive_attention(const std::vector<double>& q,
                                           const std::vector<double>& k,
                                           const std::vector<double>& mask, int64_t d,
                                           const MaskCase& m) {
  std::vector<double> p(size_t(m.B * m.H * m.T * m.T), 0);
  each_row(m, [&](int64_t b, int64_t h, int64_t t) {
    double sum = 0;
    for (int64_t j = 0; j < m.T; ++j) {
      size_t at = m.index(b, h, t, j, m.T);
      if (mask.empty() ? j >= m.width(b, t) : mask[at] == 0) continue;
      double s = 0;
      for (int64_t c = 0; c < d; ++c) s += q[m.index(b, h, t, c, d)] * k[m.index(b, h, j, c, d)];
      p[at] = std::exp(s / std::sqrt(double(d)));
      sum += p[at];
    }
    for (int64_t j = 0; j < m.T; ++j) {
      if (sum > 0) p[m.index(b, h, t, j, m.T)] /= sum;
    }
  });
  return p;
}

// P V with P [B, H, T, T] and V [B, H, T, d]: [B, H, T, d], or heads concatenated, [B, T, H d].
inline std::vector<double> naive_products(const std::vector<double>& p,
                                          const std::vector<double>& v, int64_t d,
                                          const MaskCase& m, bool concatenated) {
  std::vector<double> y(v.size(), 0);
  each_row(m, [&](int64_t b, int64_t h, int64_t t) {
    double* row = &y[concatenated ? size_t(((b * m.T + t) * m.H + h) * d) : m.index(b, h, t, 0, d)];
    for (int64_t j = 0; j < m.T; ++j) {
      for (int64_t c = 0; c < d; ++c)
        row[c] += p[m.index(b, h, t, j, m.T)] * v[m.index(b, h, j, c, d)];
    }
  });
  return y;
}

// {KL(t || a), MSE(a, t)} of two maps [B, H, T, T], means over valid rows and heads.
inline std::vector<double> naive_loss(const std::vector<double>& t, const std::vector<double>& a,
                                      const MaskCase& m) {
  double kl = 0, square = 0, rows = 0;
  for (int64_t b = 0; b < m.B; ++b) {
    for (int64_t h = 0; h < m.H; ++h) {
      for (int64_t r = 0; r < m.length(b); ++r, ++rows) {
        for (int64_t j = 0; j < m.width(b, r); ++j) {
          size_t at = m.index(b, h, r, j, m.T);
          if (t[at] > 0) kl += t[at] * std::log(t[at] / a[at]);
          square += (a[at] - t[at]) * (a[at] - t[at]) / double(m.length(b));
        }
      }
    }
  }
  return rows > 0 ? std::vector<double>{kl / rows, square / rows} : std::vector<double>{0, 0};
}

// An estimate whose every value is one of a few: full of ties.
inline Tensor plateaus(const Shape& shape, uint64_t seed, int64_t levels) {
  Tensor x = ids(shape, seed, levels, Dtype::f32);
  for (int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] = 0.125f * x.data<float>()[i];
  return x;
}

// Sizes that meet every rule: w < K, w <= k, kK < T, k >= T, K > T, lengths 0 and odd, heads that
// get nothing.
inline std::vector<MaskCase> mask_cases() {
  using enum SelectMode;
  return {
      {.B = 1, .H = 2, .T = 9, .K = 4, .k = 3},
      {.B = 2, .H = 3, .T = 37, .K = 8, .k = 5, .lengths = {37, 30}},
      {.B = 3, .H = 2, .T = 33, .K = 16, .k = 2, .lengths = {0, 33, 1}},
      {.B = 1, .H = 1, .T = 1, .K = 8, .k = 4},
      {.B = 1, .H = 4, .T = 61, .K = 4, .k = 2},
      {.B = 1, .H = 3, .T = 40, .K = 8, .k = 5, .mode = per_query},
      {.B = 2, .H = 2, .T = 21, .K = 64, .k = 50, .lengths = {21, 13}},
      {.B = 1, .H = 5, .T = 130, .K = 32, .k = 7},
      {.B = 2, .H = 2, .T = 16, .K = 8, .k = 4, .causal = false, .lengths = {16, 9}},
      {.B = 2, .H = 2, .T = 24, .K = 4, .k = 2, .causal = false, .lengths = {24, 17}},
      {.B = 2,
       .H = 3,
       .T = 19,
       .K = 8,
       .k = 3,
       .causal = false,
       .lengths = {0, 19},
       .mode = per_head},
      {.B = 2,
       .H = 2,
       .T = 35,
       .K = 16,
       .k = 3,
       .causal = false,
       .lengths = {35, 5},
       .mode = per_batch},
      {.B = 1, .H = 2, .T = 27, .K = 8, .k = 5, .causal = false, .mode = per_query},
  };
}

}  // namespace brine::test
