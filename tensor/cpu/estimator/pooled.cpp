// The scores of mean keys: a row's query times the mean key of each of its columns;
// of all rows, or of one new token.
#include <cmath>
#include <vector>

#include "tensor/base/stored.h"
#include "tensor/cpu/estimator/column_passes.h"
#include "tensor/cpu/estimator/column_step.h"
#include "tensor/cpu/estimator/prior_row.h"
#include "tensor/kernels/estimator.h"

namespace brine::BRINE_CPU {
namespace {

// The scores are linear in the query: the gradient of their gain is q . dq before dq [T, m] is
// multiplied by it.
template <class T>
double apply_gain(T gain, const T* q, T* dq, int64_t size) {
  double dgain = 0;
#pragma omp simd reduction(+ : dgain)
  for (int64_t i = 0; i < size; ++i) {
    // Rows without a gradient may contain anything.
    if (dq[i] != 0) dgain += double(q[i]) * double(dq[i]);
    dq[i] *= gain;
  }
  return dgain;
}

}  // namespace

void pooled_prior(Tensor y, Tensor scores, Tensor gain, Tensor q, Tensor k, Visibility visible,
                  ColumnGrid grid) {
  dispatch_float(y.dtype(), [&]<class T>() {
    const int64_t K = y.dim(3);
    const ColumnSums<T> at(q, k, visible, K, grid);
    const double scale = 1 / std::sqrt(double(at.m));
    const T *from = scores.data<T>(), *gains = gain.data<T>();
    column_products(
        at, y.data<T>(),
        [&](int64_t n, int64_t r, const int32_t* begin, T* row) {
          const int64_t w = at.width(n, r);
          take_means(begin, w, K, at.unit_of(w), scale, row, row);
          add_scaled(row, from + (n * at.rows + r) * K, row, gains[n % at.heads], K);
        },
        [&](int64_t n, int64_t r, T* row) { std::copy_n(from + (n * at.rows + r) * K, K, row); });
  });
}

void pooled_prior_backward(Tensor dgain, Tensor dq, Tensor dk, Tensor dy, Tensor gain, Tensor q,
                           Tensor k, Visibility visible, ColumnGrid grid) {
  dispatch_float(dy.dtype(), [&]<class T>() {
    const int64_t K = dy.dim(3);
    const ColumnSums<T> at(q, k, visible, K, grid);
    const double scale = 1 / std::sqrt(double(at.m));
    const T *from = dy.data<T>(), *gains = gain.data<T>();
    column_products_backward<false>(
        at, dq, dk, [&](int64_t n) { return gains[n % at.heads]; },
        [&](int64_t n, int64_t, int64_t r, const int32_t* begin, T* row, T*) {
          const int64_t w = at.width(n, r);
          take_means(begin, w, K, at.unit_of(w), scale, from + (n * at.rows + r) * K, row);
        });
    const int64_t size = at.tokens * at.m;
    std::vector<double> parts(size_t(at.all()), 0.0);
    parallel_for(at.all(), 1, [&](int64_t n, int64_t) {
      parts[size_t(n)] =
          apply_gain(gains[n % at.heads], q.data<T>() + n * size, dq.data<T>() + n * size, size);
    });
    for (int64_t n = 0; n < at.all(); ++n) dgain.data<T>()[n % at.heads] += T(parts[size_t(n)]);
  });
}

void pooled_scores_step(Tensor y, Tensor borders, Tensor at, Tensor q, Tensor k, Tensor width,
                        int64_t units) {
  dispatch_stored(y.dtype(), k.dtype(), [&]<class T, class S>() {
    const int64_t K = y.dim(3);
    const double scale = 1 / std::sqrt(double(q.dim(3)));
    column_products_step<T, S>(
        borders, at, q, k, width, units, StepRows::keys,
        [&](int64_t n, const BorderMove& move, int64_t w, const T* products) {
          take_means(move.begin.data(), w, K, move.unit, scale, products, y.data<T>() + n * K);
        });
  });
}

}  // namespace brine::BRINE_CPU
