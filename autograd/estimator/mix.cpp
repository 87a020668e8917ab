// The output of SEA: two paths mixed by gates, and the average that the estimate weighs.
#include "autograd/ops_estimator.h"
#include "tensor/kernels/estimator.h"
#include "tensor/mask/csr.h"
#include "tensor/meter/cost_meter.h"

namespace brine {

Tensor mix_outputs(const Tensor& c, const Tensor& average, const Tensor& gates,
                   const Visibility& visible) {
  check(c.rank() == 4, "mix_outputs: c must be [B, H, T, d], got ", c.shape());
  int64_t B = c.dim(0), H = c.dim(1), T = c.dim(2), d = c.dim(3);
  check(average.rank() == 4 && average.dtype() == c.dtype() && average.dim(0) == B &&
            average.dim(1) > 0 && H % average.dim(1) == 0 && average.dim(2) == T &&
            average.dim(3) == d,
        "mix_outputs: average must be ", c.dtype(), " [", B, ", ", H, " or a divisor, ", T, ", ", d,
        "], got ", average.dtype(), " ", average.shape());
  check((gates.shape() == Shape{B, H, T, 2}) && gates.dtype() == c.dtype(),
        "mix_outputs: gates must be ", c.dtype(), " ", Shape{B, H, T, 2}, ", got ", gates.dtype(),
        " ", gates.shape());
  check_visibility("mix_outputs", visible, B, int64_t(1) << 31);
  Tensor xc = c.detach().contiguous(), xa = average.detach().contiguous();
  Tensor xs = gates.detach().contiguous();
  Tensor y = Tensor::empty({B, T, H * d}, c.dtype(), c.device());
  BRINE_CALL(xc, mix_outputs, y, xc, xa, xs, visible);
  return record("mix_outputs", y, {c, average, gates},
                [=](const Tensor& dy, Gradients& grads) {
                  Tensor dc = Tensor::like(xc), da = Tensor::like(xa), ds = Tensor::like(xs);
                  BRINE_CALL(xc, mix_outputs_backward, dc, da, ds, dy, xc, xa, xs, visible);
                  grads.set(0, dc);
                  grads.set(1, da);
                  grads.set(2, ds);
                },
                {xc, xa, xs});
}

Tensor estimate_average(const Tensor& estimate, const Tensor& v, const Visibility& visible) {
  check(estimate.rank() == 4 && v.rank() == 4 && estimate.dtype() == v.dtype() &&
            estimate.dim(0) == v.dim(0) && v.dim(1) > 0 && estimate.dim(1) % v.dim(1) == 0 &&
            estimate.dim(2) == v.dim(2),
        "estimate_average: wanted an estimate [B, H, T, K] and v [B, G, T, d], got ",
        estimate.shape(), " and ", v.shape());
  check(!visible.causal,
        "estimate_average: a mean over rows depends on later positions, so causal is not allowed");
  check_visibility("estimate_average", visible, v.dim(0), v.dim(2));
  Tensor xe = estimate.detach().contiguous(), xv = v.detach().contiguous();
  Tensor y = Tensor::empty({v.dim(0), estimate.dim(1), v.dim(2), v.dim(3)}, v.dtype(), v.device());
  BRINE_CALL(xv, estimate_average, y, xe, xv, visible);
  count_macs(double(y.numel()) * double(estimate.dim(3)));
  Tensor out = y.detach();
  return record("estimate_average", y, {estimate, v},
                [=](const Tensor& dy, Gradients& grads) {
                  Tensor de = grads.wanted(0) ? Tensor::like(xe) : Tensor();
                  Tensor dv = grads.wanted(1) ? Tensor::like(xv) : Tensor();
                  BRINE_CALL(xv, estimate_average_backward, de, dv, dy, xe, xv, out, visible);
                  if (de.defined()) grads.set(0, de);
                  if (dv.defined()) grads.set(1, dv);
                },
                {xe, xv, out});
}

}  // namespace brine
