// Softmax over the visible keys, or over the entries of a mask.
#include "autograd/dense/contiguous_internal.h"
#include "autograd/ops.h"
#include "tensor/kernels/dense.h"

namespace brine {

Tensor record_softmax(const char* op, const Tensor& y, const Tensor& scores, double scale) {
  return record_one(op, y, scores,
                    [=](const Tensor& dx, const Tensor& dy) {
                      BRINE_CALL(dx, softmax_backward, dx, dy, y, scale);
                    },
                    {y});
}

Tensor softmax(const Tensor& scores, double scale, const Visibility& visible) {
  check(scores.rank() == 4, "softmax: scores ", scores.shape(), " are not [B, H, T, S]");
  Visibility kept = visible;
  if (visible.lengths.defined()) {
    check(visible.lengths.dtype() == Dtype::i64 && visible.lengths.shape() == Shape{scores.dim(0)},
          "softmax: lengths must be i64 [", scores.dim(0), "], got ", visible.lengths.dtype(), " ",
          visible.lengths.shape());
    kept.lengths = visible.lengths.detach().contiguous();
  }
  Tensor y = Tensor::like(scores);
  BRINE_CALL(y, softmax, y, scores.detach().contiguous(), scale, kept);
  return record_softmax("softmax", y, scores, scale);
}

Tensor masked_softmax(const Tensor& scores, const Tensor& mask, double scale) {
  check(mask.dtype() == Dtype::u8 && mask.shape() == scores.shape(),
        "masked_softmax: the mask must be u8 ", scores.shape(), ", got ", mask.dtype(), " ",
        mask.shape());
  Tensor x = scores.contiguous(), y = Tensor::like(x);
  BRINE_CALL(x, masked_softmax, y, x, mask.contiguous(), scale);
  return record_softmax("masked_softmax", y, scores, scale);
}

}  // namespace brine
