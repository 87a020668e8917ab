// Softmax over the visible keys.
#include "autograd/ops.h"

namespace brine {

Tensor softmax(const Tensor& scores, double scale, const Visibility& visible) {
  check(scores.rank() == 4, "softmax: scores ", scores.shape(), " are no [B, H, T, S]");
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

}  // namespace brine
