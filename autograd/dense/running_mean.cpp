// The running mean: each row becomes the mean of all rows up to it.
#include "autograd/ops.h"
#include "tensor/kernels/dense.h"

namespace brine {

Tensor running_mean(const Tensor& x) {
  check(x.rank() >= 2, "running_mean: x ", x.shape(), " is not [..., T, C]");
  Tensor y = Tensor::like(x);
  BRINE_CALL(y, running_mean, y, x.detach().contiguous());
  return record_one("running_mean", y, x, [](const Tensor& dx, const Tensor& dy) {
    BRINE_CALL(dx, running_mean_backward, dx, dy);
  });
}

Tensor running_mean_step(const Tensor& sums, const Tensor& v, const Tensor& counts) {
  check(sums.rank() == 3 && sums.dtype() == Dtype::f64 &&
            v.shape() == Shape{sums.dim(0), sums.dim(1), 1, sums.dim(2)},
        "running_mean_step: sums ", sums.shape(), " must be f64 [B, G, d] and v [B, G, 1, d], got ",
        v.shape());
  const Tensor share = div(1, counts.to(Dtype::f64).to(sums.device()));
  copy_into(sums, add(sums, v.detach().to(Dtype::f64).contiguous().view(sums.shape())));
  return (sums * share.view({sums.dim(0), 1, 1})).view(v.shape()).to(v.dtype());
}

}  // namespace brine
