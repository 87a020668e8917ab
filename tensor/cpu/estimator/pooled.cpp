// The scores of mean keys: a row's query times the mean key of each of its columns.
#include <cmath>
#include <vector>

#include "tensor/cpu/estimator/column_sums.h"
#include "tensor/cpu/estimator/prior_row.h"
#include "tensor/kernels/estimator.h"

namespace brine::BRINE_CPU {
void pooled_scores(Tensor y, Tensor q, Tensor k, Visibility visible, int64_t step) {
  dispatch_float(y.dtype(), [&]<class T>() {
    const int64_t K = y.dim(3);
    const ColumnSums<T> at(q, k, visible, K, step);
    const double scale = 1 / std::sqrt(double(at.m));
    const ColumnMemory<T> memory(at, false);
    parallel_for(at.all(), 1, [&](int64_t n, int64_t) {
      column_products(
          at, n, memory, y.data<T>() + n * at.rows * K,
          [&](int64_t, const int32_t* begin, T* row) { take_means(begin, K, scale, row, row); },
          [&](int64_t, T* row) { std::fill_n(row, K, T(0)); });
    });
  });
}

void pooled_scores_backward(Tensor dq, Tensor dk, Tensor dy, Tensor q, Tensor k, Visibility visible,
                            int64_t step) {
  dispatch_float(dy.dtype(), [&]<class T>() {
    const int64_t K = dy.dim(3);
    const ColumnSums<T> at(q, k, visible, K, step);
    const double scale = 1 / std::sqrt(double(at.m));
    const ColumnMemory<T> memory(at, true);
    const KeyGradients<T> keys(dk, at);
    parallel_for(at.all(), 1, [&](int64_t n, int64_t) {
      const T* from = dy.data<T>() + n * at.rows * K;
      column_products_backward<false>(at, n, memory, dq.data<T>() + n * at.tokens * at.m,
                                      keys.of_head(n),
                                      [&](int64_t r, const int32_t* begin, T* row) {
                                        take_means(begin, K, scale, from + r * K, row);
                                      });
    });
    keys.sum_up();
  });
}

}  // namespace brine::BRINE_CPU
