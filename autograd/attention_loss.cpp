// The losses on attention: the estimate against the teacher, and the dense student against it.
#include <cmath>

#include "autograd/compute_type.h"
#include "autograd/ops_sparse.h"
#include "tensor/kernels/kernels_sparse.h"

namespace brine {

Tensor approx_loss(const Tensor& scores, const TeacherSummary& summary, const Visibility& visible) {
  check(scores.rank() == 4 && scores.dim(3) > 0, "approx_loss: scores must be [B, H, T, K], got ",
        scores.shape());
  Shape rows{scores.dim(0), scores.dim(1), scores.dim(2)};
  check(summary.tau.shape() == scores.shape() && summary.tau.dtype() == scores.dtype(),
        "approx_loss: the summary's tau must be ", scores.dtype(), " ", scores.shape(), ", got ",
        summary.tau.dtype(), " ", summary.tau.shape());
  check(summary.t_log_t.shape() == rows && summary.t_square.shape() == rows,
        "approx_loss: the summary's sums must be ", rows, ", got ", summary.t_log_t.shape(),
        " and ", summary.t_square.shape());
  check_visibility("approx_loss", visible, scores.dim(0), scores.dim(2));
  Tensor x = scores.detach().contiguous(), y = Tensor::empty({2}, x.dtype(), x.device());
  TeacherSummary kept{summary.tau.contiguous(), summary.t_log_t.contiguous(),
                      summary.t_square.contiguous()};
  BRINE_CALL(x, approx_loss, y, x, kept, visible);
  return record("approx_loss", y, {scores},
                [=](const Tensor& dy, Gradients& grads) {
                  Tensor dx = Tensor::like(x);
                  BRINE_CALL(x, approx_loss_backward, dx, dy, x, kept, visible);
                  grads.set(0, dx);
                },
                {x, kept.tau});
}

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
