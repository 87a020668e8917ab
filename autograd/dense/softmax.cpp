// Softmax over the visible keys, or over the entries of a mask.
#include "autograd/ops.h"
#include "tensor/kernels/dense.h"

namespace brine {

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
  return record("softmax", y, {scores},
                [=](const Tensor& dy, Gradients& grads) {
                  Tensor dx = Tensor::like(dy);
                  BRINE_CALL(dx, softmax_backward, dx, dy, y, scale);
                  grads.set(0, dx);
                },
                {y});
}

Tensor masked_softmax(const Tensor& scores, const Tensor& mask, double scale) {
  check(mask.dtype() == Dtype::u8 && mask.shape() == scores.shape(),
        "masked_softmax: the mask must be u8 ", scores.shape(), ", got ", mask.dtype(), " ",
        mask.shape());
  Tensor x = scores.contiguous(), y = Tensor::like(x);
  BRINE_CALL(x, masked_softmax, y, x, mask.contiguous(), scale);
  Tensor p = y.detach();
  return record("masked_softmax", y, {scores},
                [=](const Tensor& dy, Gradients& grads) {
                  Tensor dx = Tensor::like(p);
                  BRINE_CALL(p, softmax_backward, dx, dy, p, scale);
                  grads.set(0, dx);
                },
                {p});
}

}  // namespace brine
