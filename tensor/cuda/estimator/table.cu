// The estimate of a table's columns, by the kernels of its parts.
#include "tensor/kernels/dense.h"
#include "tensor/kernels/estimator.h"

namespace brine::cuda {

void table_estimate(Tensor y, Tensor bias, Tensor gain, Tensor phi_q, Tensor phi_k,
                    Tensor mean_gain, Tensor q, Tensor k, Visibility visible, ColumnGrid grid,
                    double floor) {
  const Tensor scores = Tensor::like(y);
  copy(scores, bias.as_strided(y.shape(), {0, y.dim(3), 0, 1}));
  performer_prior(y, scores, gain, phi_q, phi_k, visible, grid, floor);
  pooled_prior(scores, y, mean_gain, q, k, visible, grid);
  column_softmax(y, scores, visible);
}

}  // namespace brine::cuda
