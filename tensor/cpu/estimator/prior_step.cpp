// The prior of one new token.
#include "tensor/base/stored.h"
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

}  // namespace brine::BRINE_CPU
