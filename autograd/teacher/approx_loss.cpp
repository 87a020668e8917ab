// The loss of the estimate against the teacher's attention.
#include "autograd/ops.h"
#include "tensor/kernels/teacher.h"

namespace brine {
namespace {

void check_summary(const char* op, const Tensor& scores, const TeacherSummary& summary,
                   const Visibility& visible) {
  check(scores.rank() == 4 && scores.dim(3) > 0, op, ": scores must be [B, H, T, K], got ",
        scores.shape());
  Shape rows{scores.dim(0), scores.dim(1), scores.dim(2)};
  check(summary.tau.shape() == scores.shape() && summary.tau.dtype() == scores.dtype(), op,
        ": the summary's tau must be ", scores.dtype(), " ", scores.shape(), ", got ",
        summary.tau.dtype(), " ", summary.tau.shape());
  check(summary.t_log_t.shape() == rows && summary.t_square.shape() == rows, op,
        ": the summary's sums must be ", rows, ", got ", summary.t_log_t.shape(), " and ",
        summary.t_square.shape());
  check_visibility(op, visible, scores.dim(0), scores.dim(2));
}

// The weights of rows of x [B, H, T, K] in the mean over valid rows and heads, 0 at padding; with
// by_length also over the length of the row's sequence: [B, 1, T].
Tensor mean_weights(const Tensor& x, const Visibility& visible, bool by_length) {
  const int64_t B = x.dim(0), H = x.dim(1), T = x.dim(2);
  const RowWidths widths(visible, T);
  const double count = double(H * widths.valid_rows(B));
  return Tensor::computed({B, 1, T}, x.dtype(), x.device(), [&](int64_t r) {
    const double of_row = by_length ? double(widths.length(r / T)) : 1;
    return widths(r / T, r % T) > 0 ? 1 / (count * of_row) : 0;
  });
}

}  // namespace

Tensor approx_loss(const Tensor& scores, const TeacherSummary& summary, const Visibility& visible) {
  check_summary("approx_loss", scores, summary, visible);
  Tensor x = scores.detach().contiguous(), y = Tensor::empty({2}, x.dtype(), x.device());
  TeacherSummary kept{summary.tau.contiguous(), summary.t_log_t.contiguous(),
                      summary.t_square.contiguous()};
  BRINE_CALL(x, approx_loss, y, x, kept, visible);
  return record_one("approx_loss", y, scores,
                    [=](const Tensor& dx, const Tensor& dy) {
                      BRINE_CALL(x, approx_loss_backward, dx, dy, x, kept, visible);
                    },
                    {x, kept.tau});
}

Tensor approx_loss_of_logs(const Tensor& log_estimate, const TeacherSummary& summary,
                           const Visibility& visible) {
  check_summary("approx_loss_of_logs", log_estimate, summary, visible);
  const Tensor n = column_sizes(visible, log_estimate.dim(2), log_estimate.dim(3), log_estimate);
  const Tensor owned = greater(n, 0);
  const Tensor of_kl = mean_weights(log_estimate, visible, false);
  const Tensor of_square = mean_weights(log_estimate, visible, true);
  const Tensor valid = greater(of_kl, 0);
  const Tensor logs = where(owned, log_estimate, 0), tau = where(owned, summary.tau, 0);
  const Tensor a = exp(logs);
  // Of each row, the formulas of docs/method.md section 4.1 without the normaliser.
  const Tensor kl = where(valid, summary.t_log_t, 0) - sum(tau * logs, {3});
  const Tensor square = where(valid, summary.t_square, 0) + sum(a * (n * a - 2 * tau), {3});
  return concat(
      {reshape(sum(kl * of_kl, {0, 1, 2}), {1}), reshape(sum(square * of_square, {0, 1, 2}), {1})},
      0);
}

}  // namespace brine
