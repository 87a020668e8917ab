// LayerNorm and RMSNorm.
#include "autograd/ops.h"
#include "tensor/kernels/dense.h"

namespace brine {

Tensor layernorm(const Tensor& x, const Tensor& w, const Tensor& b, double eps) {
  check(x.rank() >= 1 && x.dim(-1) > 0, "layernorm: x ", x.shape(), " has no last axis");
  const int64_t C = x.dim(-1);
  check(w.shape() == Shape{C} && b.shape() == Shape{C}, "layernorm: weight ", w.shape(),
        " and bias ", b.shape(), " must be [", C, "]");
  check(w.dtype() == x.dtype() && b.dtype() == x.dtype(), "layernorm: x ", x.dtype(), ", weight ",
        w.dtype(), " and bias ", b.dtype(), " must have one type");
  Tensor in = x.detach().contiguous(), weight = w.detach().contiguous();
  Tensor y = Tensor::like(x);
  Tensor mean = Tensor::empty({x.rows()}, x.dtype(), x.device()), rstd = Tensor::like(mean);
  BRINE_CALL(y, layernorm, y, mean, rstd, in, weight, b.detach().contiguous(), eps);
  return record("layernorm", y, {x, w, b},
                [=](const Tensor& dy, Gradients& grads) {
                  Tensor dx = grads.wanted(0) ? Tensor::like(dy) : Tensor();
                  Tensor dw = grads.wanted(1) ? grads.accumulate(1) : Tensor();
                  Tensor db = grads.wanted(2) ? grads.accumulate(2) : Tensor();
                  BRINE_CALL(dy, layernorm_backward, dx, dw, db, dy, in, weight, mean, rstd);
                  if (dx.defined()) grads.set(0, dx);
                },
                {in, weight});
}

Tensor rmsnorm(const Tensor& x, const Tensor& w, double eps) {
  check(x.rank() >= 1 && x.dim(-1) > 0, "rmsnorm: x ", x.shape(), " has no last axis");
  const int64_t C = x.dim(-1);
  check(w.shape() == Shape{C} && w.dtype() == x.dtype(), "rmsnorm: weight ", w.dtype(), " ",
        w.shape(), " must be ", x.dtype(), " [", C, "]");
  Tensor in = x.detach().contiguous(), weight = w.detach().contiguous();
  Tensor y = Tensor::like(x), rstd = Tensor::empty({x.rows()}, x.dtype(), x.device());
  BRINE_CALL(y, rmsnorm, y, rstd, in, weight, eps);
  return record("rmsnorm", y, {x, w},
                [=](const Tensor& dy, Gradients& grads) {
                  Tensor dx = grads.wanted(0) ? Tensor::like(dy) : Tensor();
                  Tensor dw = grads.wanted(1) ? grads.accumulate(1) : Tensor();
                  BRINE_CALL(dy, rmsnorm_backward, dx, dw, dy, in, weight, rstd);
                  if (dx.defined()) grads.set(0, dx);
                },
                {in, weight});
}

}  // namespace brine
