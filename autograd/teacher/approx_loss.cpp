// The loss of the estimate against the teacher's attention.
#include "autograd/ops_teacher.h"
#include "tensor/kernels/teacher.h"

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

}  // namespace brine
