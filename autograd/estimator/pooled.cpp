// The scores of mean keys.
#include "autograd/ops_estimator.h"
#include "autograd/step_checks.h"
#include "tensor/kernels/estimator.h"
#include "tensor/mask/csr.h"
#include "tensor/meter/cost_meter.h"

namespace brine {

Tensor pooled_prior(const Tensor& scores, const Tensor& gain, const Tensor& q, const Tensor& k,
                    const Visibility& visible, ColumnGrid grid) {
  const char* op = "pooled_prior";
  check_columns(op, "q and k", q, k, visible, grid);
  check_scores(op, scores, gain, q, grid.step);
  const Tensor xq = q.detach().contiguous(), xk = k.detach().contiguous();
  const Tensor g = gain.detach().contiguous();
  Tensor y = Tensor::like(scores);
  BRINE_CALL(y, pooled_prior, y, scores.detach().contiguous(), g, xq, xk, visible, grid);
  count_macs(double(y.numel()) * double(q.dim(3)));
  return record(op, y, {scores, gain, q, k},
                [=](const Tensor& dy, Gradients& grads) {
                  grads.set(0, dy);
                  if (!grads.wanted(1) && !grads.wanted(2) && !grads.wanted(3)) return;
                  Tensor dq = Tensor::like(xq), dk = Tensor::like(xk);
                  Tensor dg = grads.wanted(1) ? grads.accumulate(1) : Tensor::zeros_like(g);
                  BRINE_CALL(xq, pooled_prior_backward, dg, dq, dk, dy, g, xq, xk, visible, grid);
                  grads.set(2, dq);
                  grads.set(3, dk);
                },
                {xq, xk, g});
}

Tensor pooled_scores_step(const Tensor& borders, const Tensor& at, const Tensor& q, const Tensor& k,
                          const Tensor& width, int64_t units) {
  const char* op = "pooled_scores_step";
  const int64_t K = borders.dim(2) - 1;
  check_row(op, q, q, q.dim(-1));
  check_borders(op, borders, at, q, k, K, width);
  Tensor y = Tensor::empty({q.dim(0), q.dim(1), 1, K}, q.dtype(), q.device());
  BRINE_CALL(y, pooled_scores_step, y, borders, at, q.detach().contiguous(), k, width, units);
  return y;
}

}  // namespace brine
