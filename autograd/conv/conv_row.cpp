// Convolution of one new row of an image, for decoding; no gradient.
#include "autograd/ops.h"
#include "tensor/kernels/conv.h"

namespace brine {

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
