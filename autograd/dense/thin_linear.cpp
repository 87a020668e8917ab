// The linear layer of few rows; no gradient.
#include "autograd/ops.h"
#include "tensor/kernels/dense.h"

namespace brine {

Tensor thin_linear(const Tensor& x, const Tensor& w, const Tensor& b) {
  check(w.rank() == 2 && x.rank() >= 1 && x.dim(-1) == w.dim(1) && can_store(x.dtype(), w.dtype()),
        "thin_linear: x ", x.dtype(), " ", x.shape(), " and w ", w.dtype(), " ", w.shape(),
        " do not fit");
  const int64_t O = w.dim(0), R = x.rows();
  check(!b.defined() || b.shape() == Shape{O}, "thin_linear: bias must be [", O, "]");
  Shape shape = x.shape();
  shape[shape.rank() - 1] = O;
  Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  BRINE_CALL(y, thin_linear, y.view({R, O}), x.detach().contiguous().view({R, w.dim(1)}),
             w.detach(), b.defined() ? b.detach() : Tensor());
  return y;
}

}  // namespace brine
