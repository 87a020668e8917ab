// Scores of columns: the Performer's prior, their softmax, and skipped rows.
#include "autograd/ops_performer.h"
#include "tensor/csr.h"
#include "tensor/kernels/kernels_performer.h"
#include "tensor/meter/cost_meter.h"

namespace brine {
namespace {

int64_t skipped(int64_t rows, int64_t step) { return (rows + step - 1) / step; }

// Rows 0, step, 2 step... of x [..., T, C], which is contiguous.
Tensor nth_rows(const Tensor& x, int64_t step, int64_t first = 0) {
  Tensor rows = x.view({-1, x.dim(-2), x.dim(-1)});
  return rows.as_strided({rows.dim(0), skipped(rows.dim(1) - first, step), rows.dim(2)},
                         {rows.stride(0), step * rows.stride(1), 1}, first * rows.stride(1));
}

void check_rows(const char* op, const Tensor& x, int64_t step) {
  check(x.rank() == 4 && x.numel() > 0, op, ": x must be [B, H, T, C], got ", x.shape());
  check(step >= 1, op, ": step is ", step, ", must be at least 1");
}

}  // namespace

Tensor performer_prior(const Tensor& scores, const Tensor& gain, const Tensor& phi_q,
                       const Tensor& phi_k, const Visibility& visible, int64_t step) {
  const char* op = "performer_prior";
  check(phi_q.rank() == 4 && phi_k.shape() == phi_q.shape() && phi_k.dtype() == phi_q.dtype(), op,
        ": phi_q and phi_k must be [B, H, T, m], got ", phi_q.shape(), " and ", phi_k.shape());
  check(step >= 1, op, ": step is ", step, ", must be at least 1");
  const int64_t B = phi_q.dim(0), H = phi_q.dim(1), R = skipped(phi_q.dim(2), step);
  check(scores.rank() == 4 && scores.dtype() == phi_q.dtype() && scores.dim(0) == B &&
            scores.dim(1) == H && scores.dim(2) == R && scores.dim(3) > 0,
        op, ": scores must be ", phi_q.dtype(), " [", B, ", ", H, ", ", R, ", K], got ",
        scores.dtype(), " ", scores.shape());
  check(gain.shape() == Shape{H} && gain.dtype() == scores.dtype(), op, ": gain must be [", H,
        "], got ", gain.shape());
  check_visibility(op, visible, B, phi_q.dim(2));
  check(phi_q.dim(2) < (int64_t(1) << 30), op, ": ", phi_q.dim(2), " tokens are too many");
  const Tensor q = phi_q.detach().contiguous(), k = phi_k.detach().contiguous();
  const Tensor x = scores.detach().contiguous(), g = gain.detach().contiguous();
  Tensor y = Tensor::like(x);
  BRINE_CALL(y, performer_prior, y, x, g, q, k, visible, step);
  count_macs(double(y.numel()) * double(q.dim(3)));
  return record(op, y, {scores, gain, phi_q, phi_k},
                [=](const Tensor& dy, Gradients& grads) {
                  grads.set(0, dy);
                  if (!grads.wanted(1) && !grads.wanted(2) && !grads.wanted(3)) return;
                  Tensor dq = Tensor::like(q), dk = Tensor::like(k);
                  Tensor dg = grads.wanted(1) ? grads.accumulate(1) : Tensor::zeros_like(g);
                  BRINE_CALL(q, performer_prior_backward, dg, dq, dk, dy, g, q, k, visible, step);
                  grads.set(2, dq);
                  grads.set(3, dk);
                },
                {q, k, g});
}

Tensor column_softmax(const Tensor& scores, const Visibility& visible) {
  check(scores.rank() == 4 && scores.dim(3) > 0,
        "column_softmax: scores must be [B, H, T, K], got ", scores.shape());
  check_visibility("column_softmax", visible, scores.dim(0), scores.dim(2));
  const Tensor x = scores.detach().contiguous();
  Tensor y = Tensor::like(x);
  BRINE_CALL(y, column_softmax, y, x, visible);
  const Tensor p = y.detach();
  return record("column_softmax", y, {scores},
                [=](const Tensor& dy, Gradients& grads) {
                  Tensor dx = Tensor::like(p);
                  BRINE_CALL(p, softmax_backward, dx, dy, p, 1.0);
                  grads.set(0, dx);
                },
                {p});
}

Tensor every_nth_row(const Tensor& x, int64_t step) {
  check_rows("every_nth_row", x, step);
  const Shape shape = x.shape();
  Tensor y =
      Tensor::empty({shape[0], shape[1], skipped(shape[2], step), shape[3]}, x.dtype(), x.device());
  BRINE_CALL(y, copy, y.view({-1, y.dim(2), y.dim(3)}), nth_rows(x.detach().contiguous(), step));
  return record("every_nth_row", y, {x}, [=](const Tensor& dy, Gradients& grads) {
    Tensor dx = Tensor::zeros(shape, dy.dtype(), dy.device());
    BRINE_CALL(dx, copy, nth_rows(dx, step), dy.view({-1, dy.dim(2), dy.dim(3)}));
    grads.set(0, dx);
  });
}

Tensor repeat_rows(const Tensor& x, int64_t step, int64_t rows) {
  check_rows("repeat_rows", x, step);
  check(rows > 0 && skipped(rows, step) == x.dim(2), "repeat_rows: ", x.shape(), " does not make ",
        rows, " rows by steps of ", step);
  const Tensor in = x.detach().contiguous().view({-1, x.dim(2), x.dim(3)});
  Tensor y = Tensor::empty({x.dim(0), x.dim(1), rows, x.dim(3)}, x.dtype(), x.device());
  const int64_t reach = std::min(step, rows);
  for (int64_t i = 0; i < reach; ++i) {
    Tensor to = nth_rows(y, step, i);
    BRINE_CALL(y, copy, to, in.slice(1, 0, to.dim(1)));
  }
  const Shape shape = x.shape();
  return record("repeat_rows", y, {x}, [=](const Tensor& dy, Gradients& grads) {
    Tensor dx = Tensor::zeros(shape, dy.dtype(), dy.device());
    Tensor part = Tensor::zeros_like(dx);
    for (int64_t i = 0; i < reach; ++i) {
      Tensor from = nth_rows(dy, step, i);
      BRINE_CALL(dx, fill, part, 0.0);
      BRINE_CALL(dx, copy, part.view({-1, shape[2], shape[3]}).slice(1, 0, from.dim(1)), from);
      BRINE_CALL(dx, axpby, dx, part, 1.0, 1.0);
    }
    grads.set(0, dx);
  });
}

}  // namespace brine
