// Convolution of images.
#include "tensor/kernels/conv.h"
#include "autograd/compute_type.h"
#include "autograd/conv/image_checks.h"
#include "autograd/ops_conv.h"
#include "tensor/meter/cost_meter.h"

namespace brine {

Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& b, const Convolution& conf) {
  check_image("conv2d", x);
  check(w.rank() == 4 && w.dim(1) == x.dim(3) && w.dtype() == x.dtype(), "conv2d: weight ",
        w.dtype(), " ", w.shape(), " must be ", x.dtype(), " [out, ", x.dim(3), ", kT, kW]");
  check(w.dim(2) >= 1 && w.dim(3) % 2 == 1, "conv2d: weight ", w.shape(),
        " must have at least one row and an odd number of columns");
  check(!b.defined() || (b.shape() == Shape{w.dim(0)} && b.dtype() == x.dtype()), "conv2d: bias ",
        b.defined() ? b.shape() : Shape{}, " must be ", x.dtype(), " [", w.dim(0), "]");
  check(conf.stride >= 1 && conf.row_stride >= 1 && conf.halo_before >= 0 && conf.halo_after >= 0,
        "conv2d: strides must be >= 1 and halos >= 0");
  check_lengths("conv2d", conf.lengths, x.dim(0));
  int64_t rows = convolved_rows(x.dim(1), w.dim(2), conf);
  check(rows >= 1 && x.dim(2) >= 1, "conv2d: x ", x.shape(), " is smaller than weight ", w.shape());
  const ProductInput taken{product_type(x.dtype())};
  Tensor in = taken(x.detach().contiguous()), weight = w.detach().contiguous();
  Tensor bias = b.defined() ? b.detach().contiguous() : Tensor();
  Tensor y =
      Tensor::empty({x.dim(0), conf.halo_before + rows + conf.halo_after, x.dim(2), w.dim(0)},
                    x.dtype(), x.device());
  BRINE_CALL(y, conv2d, y, in, taken(weight), bias, conf);
  count_macs(double(x.dim(0) * rows * x.dim(2)) * double(w.numel()));
  Tensor mask = conf.relu ? y : Tensor();
  return record("conv2d", y, {x, w, b},
                [=](const Tensor& dy, Gradients& grads) {
                  Tensor dx = grads.wanted(0) ? Tensor::empty(in.shape(), dy.dtype(), dy.device())
                                              : Tensor();
                  Tensor dw = grads.wanted(1) ? grads.accumulate(1) : Tensor();
                  Tensor db = grads.wanted(2) ? grads.accumulate(2) : Tensor();
                  BRINE_CALL(dy, conv2d_backward, dx, dw, db, dy, in, taken(weight), mask, conf);
                  if (dx.defined()) grads.set(0, dx);
                },
                {in, weight, mask});
}

}  // namespace brine
