// Convolution of one new row of an image, for decoding; no gradient.
#include "autograd/ops_conv.h"
#include "tensor/kernels/conv.h"

namespace brine {

Tensor pack_row_weights(const Tensor& w) {
  check(w.rank() == 4, "pack_row_weights: weight ", w.shape(), " must be [out, in, kT, kW]");
  Tensor packed = Tensor::empty({w.dim(2), w.dim(3), w.dim(1), packed_outputs(w.dim(0))}, w.dtype(),
                                w.device());
  BRINE_CALL(packed, pack_row_weights, packed, w.detach().contiguous());
  return packed;
}

void push_row(const Tensor& window, const Tensor& row, int64_t margin) {
  check(window.rank() == 4 && row.rank() == 3 && margin >= 0 && row.dim(0) == window.dim(0) &&
            row.dim(1) + 2 * margin == window.dim(2) && row.dim(2) == window.dim(3) &&
            row.dtype() == window.dtype(),
        "push_row: row ", row.dtype(), " ", row.shape(), " with margins of ", margin,
        " does not fit the window ", window.dtype(), " ", window.shape());
  BRINE_CALL(row, push_row, window, row.detach().contiguous(), margin);
}

Tensor convolve_row(const Tensor& window, const Tensor& packed, const Tensor& b,
                    const RowConvolution& conf) {
  const char* op = "convolve_row";
  check(window.rank() == 4 && packed.rank() == 4 && packed.dim(2) == window.dim(3) &&
            packed.dtype() == window.dtype(),
        op, ": weights ", packed.dtype(), " ", packed.shape(), " do not fit the window ",
        window.dtype(), " ", window.shape());
  check(conf.dilation >= 1 && window.dim(1) == (packed.dim(0) - 1) * conf.dilation + 1, op, ": ",
        packed.dim(0), " rows of weights with dilation ", conf.dilation, " do not read ",
        window.dim(1), " rows");
  const int64_t columns = window.dim(2) - (packed.dim(1) - 1) * conf.dilation;
  check(columns >= 1, op, ": the window ", window.shape(), " is too narrow for ", packed.dim(1),
        " columns of weights with dilation ", conf.dilation);
  check(conf.outputs >= 1 && packed_outputs(conf.outputs) == packed.dim(3), op, ": ", conf.outputs,
        " channels do not fit weights packed as ", packed.shape());
  check(!b.defined() || b.shape() == Shape{conf.outputs}, op, ": bias must be [", conf.outputs,
        "]");
  Tensor y = Tensor::empty({window.dim(0), columns, conf.outputs}, window.dtype(), window.device());
  BRINE_CALL(y, convolve_row, y, window, packed, b.defined() ? b.detach() : Tensor(), conf.dilation,
             conf.relu);
  return y;
}

}  // namespace brine
