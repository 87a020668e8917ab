// The loss of the student's dense attention against the teacher's.
#include <cmath>

#include "autograd/compute_type.h"
#include "autograd/ops_teacher.h"
#include "tensor/kernels/teacher.h"

namespace brine {

Tensor prob_loss(const Tensor& q, const Tensor& k, const TeacherAttention& teacher,
                 const Visibility& visible) {
  check(q.rank() == 4 && q.dim(3) > 0 && q.shape() == k.shape() && q.dtype() == k.dtype(),
        "prob_loss: wanted q and k [B, H, T, d], got ", q.dtype(), " ", q.shape(), " and ",
        k.dtype(), " ", k.shape());
  check_teacher("prob_loss", teacher, q);
  check_visibility("prob_loss", visible, q.dim(0), q.dim(2));
  auto packed = [](const Tensor& t) { return t.defined() ? t.detach().contiguous() : t; };
  const ProductInput taken{product_type(q.dtype())};
  Tensor xq = taken(packed(q)), xk = taken(packed(k)),
         y = Tensor::empty({2}, q.dtype(), q.device());
  TeacherAttention kept{packed(teacher.map), packed(teacher.q), packed(teacher.k)};
  Shape rows{q.dim(0), q.dim(1), q.dim(2)};
  Tensor lse = Tensor::empty(rows, q.dtype(), q.device()), teacher_lse = Tensor::like(lse);
  double scale = 1 / std::sqrt(double(q.dim(3)));
  BRINE_CALL(xq, prob_loss, y, lse, teacher_lse, xq, xk, kept, visible, scale);
  return record("prob_loss", y, {q, k},
                [=](const Tensor& dy, Gradients& grads) {
                  Tensor dq = Tensor::empty(xq.shape(), dy.dtype(), dy.device()),
                         dk = Tensor::like(dq);
                  BRINE_CALL(xq, prob_loss_backward, dq, dk, dy, xq, xk, kept, lse, teacher_lse,
                             visible, scale);
                  grads.set(0, dq);
                  grads.set(1, dk);
                },
                {xq, xk, kept.map, kept.q, kept.k});
}

}  // namespace brine
