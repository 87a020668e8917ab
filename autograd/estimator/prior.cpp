// The prior of a column: the attention mass that the Performer gives to its keys.
#include "autograd/ops_estimator.h"
#include "autograd/step_checks.h"
#include "tensor/csr.h"
#include "tensor/kernels/estimator.h"
#include "tensor/meter/cost_meter.h"

namespace brine {
namespace {

int64_t skipped(int64_t rows, int64_t step) { return (rows + step - 1) / step; }

}  // namespace

Tensor performer_prior(const Tensor& scores, const Tensor& gain, const Tensor& phi_q,
                       const Tensor& phi_k, const Visibility& visible, int64_t step) {
  const char* op = "performer_prior";
  check(phi_q.rank() == 4 && phi_k.shape() == phi_q.shape() && phi_k.dtype() == phi_q.dtype(), op,
        ": phi_q and phi_k must be [B, H, T, m], got ", phi_q.shape(), " and ", phi_k.shape());
  check(step >= 1, op, ": step is ", step, ", must be at least 1");
  const int64_t B = phi_q.dim(0), H = phi_q.dim(1), R = skipped(phi_q.dim(2), step);
  check(scores.rank() == 4 && scores.dtype() == phi_q.dtype() && scores.dim(0) == B &&
            scores.dim(1) == H && scores.dim(2) == R && scores.dim(3) > 0,
        op, ": scores must be ", phi_q.dtype(), " [", B, ", ", H, ", ", R, ", K], got ",
        scores.dtype(), " ", scores.shape());
  check(gain.shape() == Shape{H} && gain.dtype() == scores.dtype(), op, ": gain must be [", H,
        "], got ", gain.shape());
  check_visibility(op, visible, B, phi_q.dim(2));
  check(phi_q.dim(2) < (int64_t(1) << 30), op, ": ", phi_q.dim(2), " tokens are too many");
  const Tensor q = phi_q.detach().contiguous(), k = phi_k.detach().contiguous();
  const Tensor x = scores.detach().contiguous(), g = gain.detach().contiguous();
  Tensor y = Tensor::like(x);
  BRINE_CALL(y, performer_prior, y, x, g, q, k, visible, step);
  count_macs(double(y.numel()) * double(q.dim(3)));
  return record(op, y, {scores, gain, phi_q, phi_k},
                [=](const Tensor& dy, Gradients& grads) {
                  grads.set(0, dy);
                  if (!grads.wanted(1) && !grads.wanted(2) && !grads.wanted(3)) return;
                  Tensor dq = Tensor::like(q), dk = Tensor::like(k);
                  Tensor dg = grads.wanted(1) ? grads.accumulate(1) : Tensor::zeros_like(g);
                  BRINE_CALL(q, performer_prior_backward, dg, dq, dk, dy, g, q, k, visible, step);
                  grads.set(2, dq);
                  grads.set(3, dk);
                },
                {q, k, g});
}

Tensor performer_prior_step(const Tensor& borders, const Tensor& at, const Tensor& scores,
                            const Tensor& gain, const Tensor& phi_q, const Tensor& phi_k,
                            const Tensor& width) {
  const char* op = "performer_prior_step";
  const int64_t B = phi_q.dim(0), H = phi_q.dim(1), m = phi_q.dim(3), K = scores.dim(-1);
  check_row(op, scores, phi_q, K);
  check(borders.dtype() == Dtype::f64 && borders.shape() == Shape{B, H, K + 1, border_columns(m)} &&
            gain.shape() == Shape{H} && phi_k.rank() == 4 && phi_k.dim(0) == B &&
            phi_k.dim(1) == H && phi_k.dim(3) == m,
        op, ": borders ", borders.shape(), ", gain ", gain.shape(), " and phi_k ", phi_k.shape(),
        " do not fit phi_q ", phi_q.shape());
  check_places(op, "width", width, B, phi_k.dim(2));
  check_places(op, "place", at, B, phi_k.dim(2));
  for (int64_t b = 0; b < B; ++b) {
    check(at.data<int64_t>()[b] <= width.data<int64_t>()[b], op, ": sequence ", b,
          " decreases from ", at.data<int64_t>()[b], " keys to ", width.data<int64_t>()[b]);
  }
  Tensor y = Tensor::like(scores);
  BRINE_CALL(y, performer_prior_step, y, borders, at, scores.detach().contiguous(),
             gain.detach().contiguous(), phi_q.detach().contiguous(), phi_k, width);
  return y;
}

}  // namespace brine
