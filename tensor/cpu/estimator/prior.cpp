// The prior of the scores: each column's share of a row's linear attention; of all
// rows, or of one new token.
#include <vector>

#include "tensor/base/stored.h"
#include "tensor/cpu/estimator/column_passes.h"
#include "tensor/cpu/estimator/column_step.h"
#include "tensor/cpu/estimator/prior_row.h"
#include "tensor/kernels/estimator.h"

namespace brine::BRINE_CPU {

void performer_prior(Tensor y, Tensor scores, Tensor gain, Tensor phi_q, Tensor phi_k,
                     Visibility visible, ColumnGrid grid, double floor) {
  dispatch_float(y.dtype(), [&]<class T>() {
    const int64_t K = scores.dim(3);
    const ColumnSums<T> at(phi_q, phi_k, visible, K, grid);
    const T *from = scores.data<T>(), *gains = gain.data<T>();
    column_products(
        at, y.data<T>(),
        [&](int64_t n, int64_t r, const int32_t* begin, T* row) {
          at.share_row(begin, n, r, floor)
              .add_logs(row, from + (n * at.rows + r) * K, gains[n % at.heads], row);
        },
        [&](int64_t n, int64_t r, T* row) { std::copy_n(from + (n * at.rows + r) * K, K, row); });
  });
}

void performer_prior_backward(Tensor dgain, Tensor dphi_q, Tensor dphi_k, Tensor dy, Tensor gain,
                              Tensor phi_q, Tensor phi_k, Visibility visible, ColumnGrid grid,
                              double floor) {
  dispatch_float(dy.dtype(), [&]<class T>() {
    const int64_t K = dy.dim(3);
    const ColumnSums<T> at(phi_q, phi_k, visible, K, grid);
    const T *from = dy.data<T>(), *gains = gain.data<T>();
    std::vector<double> sums(size_t(at.all() * at.parts), 0.0);
    column_products_backward<true>(
        at, dphi_q, dphi_k, [](int64_t) { return T(1); },
        [&](int64_t n, int64_t part, int64_t r, const int32_t* begin, T* row, T* scratch) {
          sums[size_t(n * at.parts + part)] +=
              at.share_row(begin, n, r, floor)
                  .slopes(row, from + (n * at.rows + r) * K, double(gains[n % at.heads]), scratch);
        });
    for (int64_t i = 0; i < at.all() * at.parts; ++i) {
      dgain.data<T>()[i / at.parts % at.heads] += T(sums[size_t(i)]);
    }
  });
}

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

}  // namespace brine::BRINE_CPU
