// Losses over the vocabulary: cross-entropy and the distance to a teacher's distribution.
//
// Both keep the logits and one number per row instead of a softmax. The backward pass writes over
// the logits when nothing else refers to them: [R, V] is by far the largest tensor of a language
// model.
#include "autograd/ops.h"
#include "tensor/kernels/dense.h"

namespace brine {
namespace {

void check_logits(const char* op, const Tensor& logits) {
  check(logits.rank() == 2 && logits.dim(1) > 0, op, ": logits ", logits.shape(),
        " are not [R, V]");
}

void check_ids(const char* op, const char* what, const Tensor& ids, int64_t lowest, int64_t V) {
  if (!ids.device().is_cpu()) return;
  const int32_t* id = ids.data<int32_t>();
  for (int64_t i = 0; i < ids.numel(); ++i) {
    check(id[i] >= lowest && id[i] < V, op, ": ", what, " ", id[i], " at index ", i,
          " is outside a vocabulary of ", V);
  }
}

// A tensor for the gradient of the logits: the logits themselves when this is their last use.
Tensor gradient_for(const Tensor& logits) {
  return logits.is_unique() ? logits : Tensor::like(logits);
}

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& target) {
  check_logits("cross_entropy", logits);
  const int64_t R = logits.dim(0), V = logits.dim(1);
  check(target.dtype() == Dtype::i32 && target.shape() == Shape{R},
        "cross_entropy: target must be ", "i32 [", R, "], got ", target.dtype(), " ",
        target.shape());
  Tensor x = logits.detach().contiguous(), id = target.detach().contiguous();
  check_ids("cross_entropy", "target", id, -1, V);
  Tensor loss = Tensor::empty({R}, x.dtype(), x.device()), lse = Tensor::like(loss);
  BRINE_CALL(x, cross_entropy, loss, lse, x, id);
  return record("cross_entropy", loss, {logits},
                [x = x, lse, id](const Tensor& dy, Gradients& grads) {
                  Tensor dx = gradient_for(x);
                  BRINE_CALL(dx, cross_entropy_backward, dx, dy, x, lse, id);
                  grads.set(0, dx);
                },
                {x, id});
}

Tensor kl_logits(const Tensor& logits, const TopLogits& teacher) {
  check_logits("kl_logits", logits);
  const int64_t R = logits.dim(0), V = logits.dim(1);
  const Tensor& values = teacher.values;
  check(values.defined() && values.rank() == 2 && values.dim(0) == R &&
            values.dtype() == logits.dtype(),
        "kl_logits: the teacher's values must be ", logits.dtype(), " [", R, ", n]");
  check(!teacher.lse.defined() ||
            (teacher.lse.shape() == Shape{R} && teacher.lse.dtype() == logits.dtype()),
        "kl_logits: the teacher's lse must be ", logits.dtype(), " [", R, "]");
  Tensor x = logits.detach().contiguous(), p = values.detach().contiguous(), ids;
  if (teacher.ids.defined()) {
    check(teacher.ids.dtype() == Dtype::i32 && teacher.ids.shape() == values.shape(),
          "kl_logits: ids must be i32 ", values.shape(), ", got ", teacher.ids.dtype(), " ",
          teacher.ids.shape());
    check(teacher.lse.defined(), "kl_logits: a part of the teacher's logits needs their lse");
    ids = teacher.ids.detach().contiguous();
    check_ids("kl_logits", "id", ids, 0, V);
  } else {
    check(values.dim(1) == V, "kl_logits: values ", values.shape(), " without ids must be [", R,
          ", ", V, "]");
  }
  Tensor loss = Tensor::empty({R}, x.dtype(), x.device());
  Tensor lse = Tensor::like(loss), unlisted = Tensor::like(loss), teacher_lse = Tensor::like(loss);
  if (teacher.lse.defined()) {
    teacher_lse = teacher.lse.detach().contiguous();
  } else {
    BRINE_CALL(x, log_sum_exp, teacher_lse, p);
  }
  BRINE_CALL(x, kl_logits, loss, lse, unlisted, x, p, ids, teacher_lse);
  return record("kl_logits", loss, {logits},
                [x = x, lse, unlisted, p, ids, teacher_lse](const Tensor& dy, Gradients& grads) {
                  Tensor dx = gradient_for(x);
                  BRINE_CALL(dx, kl_logits_backward, dx, dy, x, lse, unlisted, p, ids, teacher_lse);
                  grads.set(0, dx);
                },
                {x, p, ids, teacher_lse});
}

}  // namespace brine
