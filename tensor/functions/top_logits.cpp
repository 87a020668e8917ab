// The kept part of a teacher's logits: the checked functions over their kernels.
#include "tensor/functions/top_logits.h"

#include "tensor/kernels/dense.h"

namespace brine {

TopLogits largest_logits(const Tensor& logits, int64_t n) {
  check(logits.rank() >= 1 && logits.dtype() == Dtype::f32,
        "top_logits: logits must be f32 [R..., V], got ", logits.dtype(), " ", logits.shape());
  const int64_t R = logits.rows(), V = logits.dim(-1);
  check(n >= 1 && n <= V, "top_logits: ", n, " of ", V, " logits");
  TopLogits top{.values = Tensor::empty({R, n}, Dtype::f32, logits.device()),
                .ids = Tensor::empty({R, n}, Dtype::i32, logits.device()),
                .lse = Tensor::empty({R}, Dtype::f32, logits.device())};
  BRINE_CALL(logits, top_logits, top.values, top.ids, top.lse, logits.detach().contiguous());
  return top;
}

TopLogits top_logits(const Tensor& logits, int64_t n) {
  if (n > 0 && n < logits.dim(-1)) return largest_logits(logits, n);
  return {.values = logits.view({logits.rows(), logits.dim(-1)}),
          .ids = {},
          .lse = log_sum_exp(logits)};
}

Tensor log_sum_exp(const Tensor& x) {
  Tensor y = Tensor::empty({x.rows()}, x.dtype(), x.device());
  BRINE_CALL(x, log_sum_exp, y, x.detach().contiguous());
  return y;
}

}  // namespace brine
