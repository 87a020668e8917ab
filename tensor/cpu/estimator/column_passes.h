// Products of queries with the sums of keys over columns for all heads of a call, and their
// gradients.
#pragma once

#include <algorithm>
#include <vector>

#include "tensor/cpu/estimator/column_group.h"

namespace brine::BRINE_CPU {

// y [B, H, R, K] = the products. finish(n, r, starts, row) follows for each row of head n = b H + h
// that sees keys, unseen(n, r, row) for the others.
template <class T, class Finish, class Unseen>
void column_products(const ColumnSums<T>& at, T* y, Finish finish, Unseen unseen) {
  const ColumnMemory<T> memory(at, false);
  parallel_for(at.tasks(), 1, [&](int64_t task, int64_t) {
    const auto wide = memory.wide.lease();
    const auto sums = memory.sums.lease();
    ColumnGroup<T> group(at, task, wide.data(), sums.data());
    T* q = sums.data() + 2 * at.window_array();
    const int64_t of_head = at.rows * at.K;
    T* rows = y + group.head(0) * of_head;
    std::vector<int32_t> starts(size_t(at.K + 1));
    auto band = [&](int64_t first, int64_t count) {
      group.load_queries(
          first, count, [](int64_t) { return T(1); }, q);
      group.products(first, count, q, rows + first * at.K, of_head);
      for (int64_t r = first; r < first + count; ++r) {
        at.fill_starts(group.width(r), 0, at.K + 1, starts.data());
        for (int64_t h = 0; h < at.task_heads(); ++h) {
          finish(group.head(h), r, starts.data(), rows + h * of_head + r * at.K);
        }
      }
    };
    const int64_t seen = group.bands(band, [](const auto&) {});
    for (int64_t r = seen; r < group.end_row(); ++r) {
      for (int64_t h = 0; h < at.task_heads(); ++h) {
        unseen(group.head(h), r, rows + h * of_head + r * at.K);
      }
    }
  });
}

// Gradients of the keys: computed per task, then added up over the parts of a group.
template <class T>
class KeyGradients {
 public:
  // dk [B, G, T, m].
  KeyGradients(const Tensor& dk, const ColumnSums<T>& at)
      : at_(at),
        dk_(dk),
        parts_(at.parts == 1 ? dk : Tensor::empty({at.tasks(), at.tokens, at.m}, dk.dtype())) {}

  // [T, m] of a task from the gradients of its prefix sums: key j is in every prefix after it.
  void put(int64_t task, int64_t keys, double* dprefix) const {
    T* to = of(task);
    double* later = dprefix + keys * at_.padded;
    for (int64_t j = keys - 1; j >= 0; --j, later -= at_.padded) {
      for (int64_t i = 0; i < at_.m; ++i) to[j * at_.m + i] = T(later[i]);
      if (j == 0) break;
      double* here = later - at_.padded;
#pragma omp simd
      for (int64_t i = 0; i < at_.padded; ++i) here[i] += later[i];
    }
    std::fill(to + keys * at_.m, to + at_.tokens * at_.m, T(0));
  }

  void sum_up() const {
    if (at_.parts == 1) return;
    const int64_t size = at_.tokens * at_.m;
    parallel_for(at_.batch * at_.groups, 1, [&](int64_t g, int64_t) {
      T* to = dk_.template data<T>() + g * size;
      std::copy_n(of(g * at_.parts), size, to);
      for (int64_t p = 1; p < at_.parts; ++p) {
        const T* from = of(g * at_.parts + p);
#pragma omp simd
        for (int64_t i = 0; i < size; ++i) to[i] += from[i];
      }
    });
  }

 private:
  T* of(int64_t task) const { return parts_.template data<T>() + task * at_.tokens * at_.m; }

  const ColumnSums<T>& at_;
  Tensor dk_, parts_;
};

// The gradients dq [B, H, T, m] and dk [B, G, T, m]. slope(n, part, r, starts, row, scratch) makes
// the derivatives with respect to the products of a row of head n that sees keys; before that `row`
// [K] contains the products if `multiplied`; scratch [K]. A head's rows have at.parts parts, which
// run concurrently. dk is of slopes times factor(n), which is 1 if `multiplied`.
template <bool multiplied, class T, class Factor, class Slope>
void column_products_backward(const ColumnSums<T>& at, const Tensor& dq, const Tensor& dk,
                              Factor factor, Slope slope) {
  const ColumnMemory<T> memory(at, true);
  const KeyGradients<T> keys(dk, at);
  const int64_t task_heads = at.task_heads(), kRows = at.kRows;
  T* dq_all = dq.data<T>();
  parallel_for(at.tasks(), 1, [&](int64_t task, int64_t) {
    const auto wide = memory.wide.lease();
    const auto sums = memory.sums.lease();
    ColumnGroup<T> group(at, task, wide.data(), sums.data());
    double* dprefix = wide.data() + at.array();
    std::fill(dprefix, dprefix + (group.keys_seen() + 1) * at.padded, 0.0);
    T* grads = sums.data() + 2 * at.window_array();
    std::fill(grads, grads + 2 * at.window_array(), T(0));
    T *q = grads + 2 * at.window_array(), *dquery = q + task_heads * kRows * at.padded;
    T *rows = dquery + task_heads * kRows * at.padded, *scratch = rows + task_heads * kRows * at.K;
    std::vector<int32_t> starts(size_t(at.K + 1));
    // Queries that are skipped have no gradient, nor have those that see no key.
    const int64_t first_token = group.first_row() * at.step;
    const int64_t end_token = std::min(at.tokens, group.end_row() * at.step);
    for (int64_t h = 0; h < task_heads; ++h) {
      T* to = dq_all + group.head(h) * at.tokens * at.m;
      std::fill(to + first_token * at.m, to + end_token * at.m, T(0));
    }
    auto band = [&](int64_t first, int64_t count) {
      group.load_queries(first, count, factor, q);
      if constexpr (multiplied) group.products(first, count, q, rows, kRows * at.K);
      for (int64_t r = 0; r < count; ++r) {
        at.fill_starts(group.width(first + r), 0, at.K + 1, starts.data());
        for (int64_t h = 0; h < task_heads; ++h) {
          slope(group.head(h), task % at.parts, first + r, starts.data(),
                rows + (h * kRows + r) * at.K, scratch);
        }
      }
      std::fill_n(dquery, task_heads * kRows * at.padded, T(0));
      group.spread(first, count, q, rows, dquery, grads, dprefix);
      for (int64_t h = 0; h < task_heads; ++h) {
        T* to = dq_all + (group.head(h) * at.tokens + first * at.step) * at.m;
        for (int64_t r = 0; r < count; ++r, to += at.step * at.m) {
          std::copy_n(dquery + (h * kRows + r) * at.padded, at.m, to);
        }
      }
    };
    using Band = typename ColumnGroup<T>::Band;
    auto left = [&](const Band& next) {
      group.flush(false, grads, dprefix);
      if (!group.follows(next)) group.flush(true, grads, dprefix);
    };
    group.bands(band, left);
    if (group.windowed(group.band())) left({});
    keys.put(task, group.keys_seen(), dprefix);
  });
  keys.sum_up();
}

}  // namespace brine::BRINE_CPU
