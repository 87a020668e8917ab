// The scores of mean keys for one new token.
#include <cmath>

#include "tensor/base/stored.h"
#include "tensor/cpu/estimator/column_step.h"
#include "tensor/cpu/estimator/prior_row.h"
#include "tensor/kernels/estimator.h"

namespace brine::BRINE_CPU {

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
