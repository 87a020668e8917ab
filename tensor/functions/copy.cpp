// The functions of a tensor that write memory: filled ones, copies, other types and devices.
#include "tensor/device/accelerator.h"
#include "tensor/kernels/dense.h"
#include "tensor/tensor.h"

namespace brine {

Tensor Tensor::zeros(const Shape& shape, Dtype dtype, Device device) {
  Tensor t = empty(shape, dtype, device);
  BRINE_CALL(t, fill, t, 0.0);
  return t;
}

Tensor Tensor::full(const Shape& shape, double value, Dtype dtype, Device device) {
  Tensor t = empty(shape, dtype, device);
  BRINE_CALL(t, fill, t, value);
  return t;
}

Tensor Tensor::clone() const {
  Tensor t = empty(shape(), dtype(), device());
  BRINE_CALL(t, copy, t, detach());
  return t;
}

Tensor Tensor::to(Dtype wanted) const {
  if (wanted == dtype()) return *this;
  check(impl_->node == nullptr, "to: this tensor is on the tape; use the op cast");
  Tensor t = empty(shape(), wanted, device());
  BRINE_CALL(t, copy, t, *this);
  return t;
}

Tensor Tensor::to(Device wanted) const {
  if (wanted == device()) return *this;
  if (device().is_meta()) refuse_values("to");
  check(impl_->node == nullptr, "to: this tensor is on the tape; detach() it first");
  if (wanted.is_meta()) return empty(shape(), dtype(), wanted);
  check(!wanted.is_cuda() || !device().is_cuda(), "to: from ", device(), " to ", wanted,
        " by way of the cpu only");
  const Tensor from = contiguous();
  Tensor t = empty(shape(), dtype(), wanted);
  const size_t bytes = size_t(numel()) * item_size(dtype());
  if (wanted.is_cuda()) {
    cuda::upload(t.raw(), from.raw(), bytes, wanted);
  } else {
    cuda::download(t.raw(), from.raw(), bytes, device());
  }
  return t;
}

void assign(const Tensor& to, const Tensor& from) {
  check(to.shape() == from.shape(), "assign: ", from.shape(), " does not fit ", to.shape());
  const Tensor source = from.detach().to(to.device());
  BRINE_CALL(to, copy, to.detach(), source);
}

}  // namespace brine
