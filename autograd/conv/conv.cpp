// Convolution of images, and of one new row of an image for decoding, which has no gradient.
#include "tensor/kernels/conv.h"
#include "autograd/compute_type.h"
#include "autograd/ops.h"
#include "autograd/step_checks.h"
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

void push_row(const Tensor& window, const Tensor& row, int64_t margin) {
  check(window.rank() == 4 && row.rank() == 3 && margin >= 0 && row.dim(0) == window.dim(0) &&
            row.dim(1) + 2 * margin == window.dim(2) && row.dim(2) == window.dim(3) &&
            row.dtype() == window.dtype(),
        "push_row: row ", row.dtype(), " ", row.shape(), " with margins of ", margin,
        " does not fit the window ", window.dtype(), " ", window.shape());
  const int64_t last = window.dim(1) - 1;
  copy_into(window.slice(1, 0, last), window.slice(1, 1, last).clone());
  copy_into(window.slice(1, last, 1).slice(2, margin, row.dim(1)),
            row.detach().contiguous().view({row.dim(0), 1, row.dim(1), row.dim(2)}));
}

Tensor convolve_row(const Tensor& window, const Tensor& w, const Tensor& b,
                    const Convolution& conf) {
  const char* op = "convolve_row";
  check(window.rank() == 4 && w.rank() == 4 && w.dim(1) == window.dim(3) &&
            w.dtype() == window.dtype(),
        op, ": weights ", w.dtype(), " ", w.shape(), " do not fit the window ", window.dtype(), " ",
        window.shape());
  check(window.dim(1) == w.dim(2), op, ": ", w.dim(2), " rows of weights do not read ",
        window.dim(1), " rows");
  const int64_t columns = window.dim(2) - (w.dim(3) - 1), O = w.dim(0);
  check(columns >= 1, op, ": the window ", window.shape(), " is too narrow for ", w.dim(3),
        " columns of weights");
  check(!b.defined() || b.shape() == Shape{O}, op, ": bias must be [", O, "]");
  Tensor y = Tensor::empty({window.dim(0), 1, columns, O}, window.dtype(), window.device());
  BRINE_CALL(y, conv2d, y, window.contiguous(), w.detach().contiguous(),
             b.defined() ? b.detach() : Tensor(), conf);
  return y.view({window.dim(0), columns, O});
}

}  // namespace brine
