// The optimizer's step; no gradient.
#include "autograd/ops.h"
#include "tensor/kernels/dense.h"

namespace brine {

void adamw(const Tensor& w, const Tensor& m, const Tensor& v, const Tensor& g,
           const AdamwStep& step) {
  for (const Tensor& x : {m, v, g}) {
    check(x.shape() == w.shape() && x.dtype() == w.dtype() && x.is_contiguous(),
          "adamw: moments and gradient must be contiguous ", w.dtype(), " ", w.shape(), ", got ",
          x.dtype(), " ", x.shape());
  }
  check(w.is_contiguous(), "adamw: the parameter ", w.shape(), " is not contiguous");
  BRINE_CALL(w, adamw, w, m, v, g, step);
}

}  // namespace brine
