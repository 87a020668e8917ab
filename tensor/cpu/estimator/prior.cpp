// The prior of the scores: each column's share of a row's linear attention.
#include <vector>

#include "tensor/cpu/estimator/column_sums.h"
#include "tensor/cpu/estimator/prior_row.h"
#include "tensor/kernels/estimator.h"

namespace brine::BRINE_CPU {

void performer_prior(Tensor y, Tensor scores, Tensor gain, Tensor phi_q, Tensor phi_k,
                     Visibility visible, int64_t step, double floor) {
  dispatch_float(y.dtype(), [&]<class T>() {
    const int64_t K = scores.dim(3);
    const ColumnSums<T> at(phi_q, phi_k, visible, K, step);
    const ColumnMemory<T> memory(at, false);
    parallel_for(at.all(), 1, [&](int64_t n, int64_t) {
      const T* from = scores.data<T>() + n * at.rows * K;
      const T by = gain.data<T>()[n % at.heads];
      column_products(
          at, n, memory, y.data<T>() + n * at.rows * K,
          [&](int64_t r, const int32_t* begin, T* row) {
            ShareRow<T>{begin, at.width(n, r), K, floor}.add_logs(row, from + r * K, by, row);
          },
          [&](int64_t r, T* row) { std::copy_n(from + r * K, K, row); });
    });
  });
}

void performer_prior_backward(Tensor dgain, Tensor dphi_q, Tensor dphi_k, Tensor dy, Tensor gain,
                              Tensor phi_q, Tensor phi_k, Visibility visible, int64_t step,
                              double floor) {
  dispatch_float(dy.dtype(), [&]<class T>() {
    const int64_t K = dy.dim(3);
    const ColumnSums<T> at(phi_q, phi_k, visible, K, step);
    const int64_t size = at.tokens * at.m;
    std::vector<double> parts(size_t(at.all()), 0.0);
    const ColumnMemory<T> memory(at, true);
    const KeyGradients<T> dk(dphi_k, at);
    parallel_for(at.all(), 1, [&](int64_t n, int64_t) {
      const T* from = dy.data<T>() + n * at.rows * K;
      const double by = double(gain.data<T>()[n % at.heads]);
      std::vector<T> value(size_t(K), T(0));
      column_products_backward<true>(at, n, memory, dphi_q.data<T>() + n * size, dk.of_head(n),
                                     [&](int64_t r, const int32_t* begin, T* row) {
                                       parts[size_t(n)] +=
                                           ShareRow<T>{begin, at.width(n, r), K, floor}.slopes(
                                               row, from + r * K, by, value.data());
                                     });
    });
    dk.sum_up();
    for (int64_t n = 0; n < at.all(); ++n) {
      dgain.data<T>()[n % at.heads] += T(parts[size_t(n)]);
    }
  });
}

}  // namespace brine::BRINE_CPU
