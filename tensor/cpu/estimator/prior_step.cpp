// The prior of one new token.
#include "tensor/base/stored.h"
#include "tensor/cpu/core/pieces.h"
#include "tensor/cpu/estimator/column_step.h"
#include "tensor/cpu/estimator/prior_row.h"
#include "tensor/kernels/estimator.h"

namespace brine::BRINE_CPU {

void performer_prior_step(Tensor y, Tensor borders, Tensor at, Tensor scores, Tensor gain,
                          Tensor phi_q, Tensor phi_k, Tensor width, double floor, int64_t units) {
  dispatch_stored(y.dtype(), phi_k.dtype(), [&]<class T, class S>() {
    const int64_t H = phi_q.dim(1), K = scores.dim(3);
    column_products_step<T, S>(
        borders, at, phi_q, phi_k, width, units, StepRows::units,
        [&](int64_t n, const BorderMove& move, int64_t w, const T* products) {
          ShareRow<T>{move.begin.data(), w, K, move.unit, floor}.add_logs(
              products, scores.data<T>() + n * K, gain.data<T>()[n % H], y.data<T>() + n * K);
        });
  });
}

void append_to_units(Tensor rows, Tensor row, Tensor at, int64_t K, int64_t units) {
  const int64_t G = rows.dim(1), R = rows.dim(2), m = rows.dim(3);
  dispatch_stored(row.dtype(), rows.dtype(), [&]<class T, class S>() {
    for (int64_t g = 0; g < rows.dim(0) * G; ++g) {
      const int64_t keys = at.data<int64_t>()[g / G];
      const int64_t unit = math::unit_of_sums(keys + 1, K, units);
      S* group_rows = rows.data<S>() + g * R * m;
      if (unit > math::unit_of_sums(keys, K, units)) {
        const int64_t before = unit / 2, made = (keys + before - 1) / before;
        for (int64_t i = 0; i < made; i += 2) {
          for (int64_t f = 0; f < m; ++f) {
            const T next = i + 1 < made ? T(group_rows[(i + 1) * m + f]) : T(0);
            group_rows[i / 2 * m + f] = S(T(group_rows[i * m + f]) + next);
          }
        }
      }
      S* to = group_rows + keys / unit * m;
      const T* x = row.data<T>() + g * m;
      for (int64_t f = 0; f < m; ++f) to[f] = S(keys % unit ? T(to[f]) + x[f] : x[f]);
    }
  });
}

void sum_units(Tensor y, Tensor x, Tensor lengths, Tensor units) {
  const int64_t G = x.dim(1), T = x.dim(2), m = x.dim(3), R = y.dim(2);
  dispatch_float(x.dtype(), [&]<class F>() {
    for_pieces(x.dim(0) * G * R, x.numel(), [&](int64_t i) {
      const int64_t n = i / R, r = i % R, b = n / G, unit = units.data<int64_t>()[b];
      const int64_t length = std::min(lengths.data<int64_t>()[b], T);
      const int64_t first = std::min(length, r * unit), last = std::min(length, first + unit);
      std::vector<double> sums(size_t(m), 0.0);
      const F* row = x.data<F>() + (n * T + first) * m;
      for (int64_t t = first; t < last; ++t, row += m) {
        for (int64_t c = 0; c < m; ++c) sums[size_t(c)] += double(row[c]);
      }
      dispatch_float(y.dtype(), [&]<class Y>() {
        Y* to = y.data<Y>() + i * m;
        for (int64_t c = 0; c < m; ++c) to[c] = Y(sums[size_t(c)]);
      });
    });
  });
}

}  // namespace brine::BRINE_CPU
