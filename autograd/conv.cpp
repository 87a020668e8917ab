// Convolution and upsampling of images.
#include "autograd/compute_type.h"
#include "autograd/ops.h"
#include "autograd/ops_conv.h"
#include "tensor/meter/cost_meter.h"

namespace brine {
namespace {

void check_image(const char* op, const Tensor& x) {
  check(x.defined() && x.rank() == 4, op, ": x must be an image [B, tokens, columns, channels]");
  check(x.dtype() == Dtype::f32 || x.dtype() == Dtype::f64, op, ": x is ", x.dtype(),
        ", wanted f32 or f64");
}

void check_lengths(const char* op, const Tensor& lengths, int64_t B) {
  if (!lengths.defined()) return;
  check(lengths.dtype() == Dtype::i64 && lengths.shape() == Shape{B} && lengths.is_contiguous(), op,
        ": lengths are ", lengths.dtype(), " ", lengths.shape(), ", wanted i64 [", B, "]");
}

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& b, const Convolution& conf) {
  check_image("conv2d", x);
  check(w.rank() == 4 && w.dim(1) == x.dim(3) && w.dtype() == x.dtype(), "conv2d: weight ",
        w.dtype(), " ", w.shape(), " must be ", x.dtype(), " [out, ", x.dim(3), ", kT, kW]");
  check(w.dim(2) >= 1 && w.dim(3) % 2 == 1, "conv2d: weight ", w.shape(),
        " must have at least one row and an odd number of columns");
  check(!b.defined() || (b.shape() == Shape{w.dim(0)} && b.dtype() == x.dtype()), "conv2d: bias ",
        b.defined() ? b.shape() : Shape{}, " must be ", x.dtype(), " [", w.dim(0), "]");
  check(conf.dilation >= 1 && conf.stride >= 1 && conf.row_stride >= 1 && conf.halo_before >= 0 &&
            conf.halo_after >= 0,
        "conv2d: dilation, strides must be >= 1 and halos >= 0");
  check_lengths("conv2d", conf.lengths, x.dim(0));
  int64_t rows = convolved_rows(x.dim(1), w.dim(2), conf);
  check(rows >= 1 && x.dim(2) >= 1, "conv2d: x ", x.shape(), " is smaller than weight ", w.shape(),
        " with dilation ", conf.dilation);
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

Tensor upsample(const Tensor& x, const Upsampling& conf) {
  check_image("upsample", x);
  check(conf.tokens >= 1 && conf.columns >= 1 && conf.stride >= 1 && conf.halo_before >= 0 &&
            conf.halo_after >= 0,
        "upsample: tokens, columns and stride must be >= 1 and halos >= 0");
  int64_t rows = (conf.tokens + conf.stride - 1) / conf.stride;
  check(x.dim(1) >= rows && x.dim(2) >= 1, "upsample: x ", x.shape(), " has fewer than ", rows,
        " rows, for ", conf.tokens, " tokens at stride ", conf.stride);
  check_lengths("upsample", conf.lengths, x.dim(0));
  Tensor in = x.detach().contiguous();
  Tensor y = Tensor::empty(
      {x.dim(0), conf.halo_before + conf.tokens + conf.halo_after, conf.columns, x.dim(3)},
      x.dtype(), x.device());
  BRINE_CALL(y, upsample, y, in, conf);
  Shape shape = x.shape();
  return record("upsample", y, {x}, [=](const Tensor& dy, Gradients& grads) {
    if (!grads.wanted(0)) return;
    Tensor dx = Tensor::empty(shape, dy.dtype(), dy.device());
    BRINE_CALL(dx, upsample_backward, dx, dy, conf);
    grads.set(0, dx);
  });
}

}  // namespace brine
