// The scores of mean keys: a row's query times the mean key of each of its columns.
#include <cmath>
#include <vector>

#include "tensor/cpu/estimator/column_sums.h"
#include "tensor/cpu/estimator/prior_row.h"
#include "tensor/kernels/estimator.h"

namespace brine::BRINE_CPU {
namespace {

// The scores are linear in the query: the gradient of their gain is q . dq before dq and dk [T, m]
// are multiplied by it.
template <class T>
double apply_gain(T gain, const T* q, T* dq, T* dk, int64_t size) {
  double dgain = 0;
#pragma omp simd reduction(+ : dgain)
  for (int64_t i = 0; i < size; ++i) {
    // Rows without a gradient may contain anything.
    if (dq[i] != 0) dgain += double(q[i]) * double(dq[i]);
    dq[i] *= gain;
    dk[i] *= gain;
  }
  return dgain;
}

}  // namespace

void pooled_scores(Tensor y, Tensor scores, Tensor gain, Tensor q, Tensor k, Visibility visible,
                   int64_t step) {
  dispatch_float(y.dtype(), [&]<class T>() {
    const int64_t K = y.dim(3);
    const ColumnSums<T> at(q, k, visible, K, step);
    const double scale = 1 / std::sqrt(double(at.m));
    const ColumnMemory<T> memory(at, false);
    parallel_for(at.all(), 1, [&](int64_t n, int64_t) {
      const T* from = scores.defined() ? scores.data<T>() + n * at.rows * K : nullptr;
      const T by = from ? gain.data<T>()[n % at.heads] : T(1);
      column_products(
          at, n, memory, y.data<T>() + n * at.rows * K,
          [&](int64_t r, const int32_t* begin, T* row) {
            take_means(begin, K, scale, row, row);
            if (from) add_scaled(row, from + r * K, by, K);
          },
          [&](int64_t r, T* row) {
            if (from) std::copy_n(from + r * K, K, row);
            if (!from) std::fill_n(row, K, T(0));
          });
    });
  });
}

void pooled_scores_backward(Tensor dgain, Tensor dq, Tensor dk, Tensor dy, Tensor gain, Tensor q,
                            Tensor k, Visibility visible, int64_t step) {
  dispatch_float(dy.dtype(), [&]<class T>() {
    const int64_t K = dy.dim(3);
    const ColumnSums<T> at(q, k, visible, K, step);
    const int64_t size = at.tokens * at.m;
    const double scale = 1 / std::sqrt(double(at.m));
    const ColumnMemory<T> memory(at, true);
    const KeyGradients<T> keys(dk, at);
    std::vector<double> parts(size_t(at.all()), 0.0);
    parallel_for(at.all(), 1, [&](int64_t n, int64_t) {
      const T* from = dy.data<T>() + n * at.rows * K;
      T* own = dq.data<T>() + n * size;
      column_products_backward<false>(at, n, memory, own, keys.of_head(n),
                                      [&](int64_t r, const int32_t* begin, T* row) {
                                        take_means(begin, K, scale, from + r * K, row);
                                      });
      if (!gain.defined()) return;
      parts[size_t(n)] = apply_gain(gain.data<T>()[n % at.heads], q.data<T>() + n * size, own,
                                    keys.of_head(n), size);
    });
    keys.sum_up();
    for (int64_t n = 0; gain.defined() && n < at.all(); ++n) {
      dgain.data<T>()[n % at.heads] += T(parts[size_t(n)]);
    }
  });
}

}  // namespace brine::BRINE_CPU
