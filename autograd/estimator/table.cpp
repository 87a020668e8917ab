// The estimate of a table's columns, where no gradient is needed.
#include "autograd/node.h"
#include "autograd/ops_estimator.h"
#include "autograd/step_checks.h"
#include "tensor/kernels/estimator.h"
#include "tensor/meter/cost_meter.h"

namespace brine {

Tensor table_estimate(const Tensor& bias, const PriorInputs& prior, const PriorInputs& means,
                      const Visibility& visible, int64_t units, double floor) {
  const char* op = "table_estimate";
  const ColumnGrid grid(1, units);
  check_columns(op, "phi_q and phi_k", prior.q, prior.k, visible, grid);
  check_columns(op, "q and k", means.q, means.k, visible, grid);
  const Tensor& q = means.q;
  check(q.dim(0) == prior.q.dim(0) && q.dim(1) == prior.q.dim(1) && q.dim(2) == prior.q.dim(2) &&
            means.k.dim(1) == prior.k.dim(1),
        op, ": phi_q ", prior.q.shape(), " and phi_k ", prior.k.shape(), " are not of q ",
        q.shape(), " and k ", means.k.shape());
  const int64_t H = q.dim(1);
  check(bias.rank() == 2 && bias.dim(0) == H && bias.dim(1) > 0, op, ": bias must be [", H,
        ", K], got ", bias.shape());
  for (const Tensor& gain : {prior.gain, means.gain}) {
    check(gain.shape() == Shape{H}, op, ": gains must be [", H, "], got ", gain.shape());
  }
  check(floor >= 0 && floor < 1, op, ": floor is ", floor, ", must be a share");
  Tensor y = Tensor::empty({q.dim(0), H, q.dim(2), bias.dim(1)}, q.dtype(), q.device());
  auto plain = [](const Tensor& x) { return x.detach().contiguous(); };
  BRINE_CALL(y, table_estimate, y, plain(bias), plain(prior.gain), plain(prior.q), plain(prior.k),
             plain(means.gain), plain(q), plain(means.k), visible, grid, floor);
  count_macs(double(y.numel()) * double(prior.q.dim(3) + q.dim(3)));
  return y;
}

}  // namespace brine
