// The linear attention of the Performer, and that of one new token of every sequence, from running
// sums.
#include <limits>

#include "autograd/ops.h"
#include "autograd/step_checks.h"
#include "tensor/kernels/estimator.h"
#include "tensor/mask/csr.h"
#include "tensor/meter/cost_meter.h"

namespace brine {
namespace {

// Multiply-adds of the forward pass over the heads of a group, which share the state: T rows, m
// features, values with e columns.
double linear_attention_macs(int64_t heads, int64_t T, int64_t m, int64_t e, bool causal) {
  double macs = double(1 + heads) * double(T) * double(m) * double(e);
  for (int64_t s = 0; causal && s < T; s += kLinearAttentionChunk) {
    const double n = double(T - s < kLinearAttentionChunk ? T - s : kLinearAttentionChunk);
    macs += double(heads) * n * n * double(m + e);
  }
  return macs;
}

// Kernels take a table: one without columns in place of an undefined one.
Tensor table_of(const Tensor& identity, const Tensor& v) {
  if (identity.defined()) return identity.detach().contiguous();
  return Tensor::empty({1, 0}, v.dtype(), v.device());
}

}  // namespace

Tensor linear_attention(const Tensor& phi_q, const Tensor& phi_k, const Tensor& identity,
                        const Tensor& v, const Visibility& visible, double eps) {
  const char* op = "linear_attention";
  check(phi_q.rank() == 4 && phi_k.rank() == 4 && phi_k.dim(0) == phi_q.dim(0) &&
            phi_k.dim(1) > 0 && phi_q.dim(1) % phi_k.dim(1) == 0 && phi_k.dim(2) == phi_q.dim(2) &&
            phi_k.dim(3) == phi_q.dim(3) &&
            (phi_q.dtype() == Dtype::f32 || phi_q.dtype() == Dtype::f64) &&
            phi_k.dtype() == phi_q.dtype(),
        op, ": phi_q and phi_k must be [B, H, T, m] and [B, G, T, m], got ", phi_q.shape(), " and ",
        phi_k.shape());
  const int64_t B = phi_q.dim(0), H = phi_q.dim(1), G = phi_k.dim(1), T = phi_q.dim(2);
  check(v.rank() == 4 && v.dtype() == phi_q.dtype() && v.dim(0) == B && v.dim(1) == G &&
            v.dim(2) == T,
        op, ": v must be ", phi_q.dtype(), " [", B, ", ", G, ", ", T, ", d], got ", v.dtype(), " ",
        v.shape());
  check_visibility(op, visible, B, T);
  Tensor id;
  if (identity.defined()) {
    const bool table = identity.rank() == 2;
    check(identity.dtype() == v.dtype() && (table || identity.rank() == 3), op,
          ": identity must be a table [P, i] or [B, T, i] of ", v.dtype(), ", got ",
          identity.dtype(), " ", identity.shape());
    check(!table || identity.dim(0) >= T, op, ": ", T, " tokens, but the table has ",
          identity.dim(0), " positions");
    check(table || (identity.dim(0) == B && identity.dim(1) == T && !wants_grad(identity)), op,
          ": identity must be [", B, ", ", T, ", i] without a gradient, got ", identity.shape());
    id = identity.detach().contiguous();
  }
  const Tensor q = phi_q.detach().contiguous(), k = phi_k.detach().contiguous();
  const Tensor values = v.detach().contiguous();
  const int64_t e = v.dim(3) + (id.defined() ? id.dim(-1) : 0);
  Tensor y = Tensor::empty({B, H, T, e}, v.dtype(), v.device());
  Tensor den = Tensor::empty({B, H, T}, v.dtype(), v.device());
  BRINE_CALL(y, linear_attention, y, den, q, k, id, values, visible, eps);
  // With the filled columns, which the device multiplies.
  count_macs(double(B * G) * linear_attention_macs(H / G, T, q.dim(3), e, visible.causal));
  const Tensor out = y.detach();
  return record(op, y, {phi_q, phi_k, identity, v},
                [=](const Tensor& dy, Gradients& grads) {
                  Tensor dq = Tensor::like(q), dk = Tensor::like(k), dv = Tensor::like(values);
                  Tensor did = grads.wanted(2) ? grads.accumulate(2) : Tensor();
                  BRINE_CALL(out, linear_attention_backward, dq, dk, did, dv, dy, out, den, q, k,
                             id, values, visible, eps);
                  grads.set(0, dq);
                  grads.set(1, dk);
                  grads.set(3, dv);
                },
                {q, k, id, values, out});
}

void linear_attention_state(const Tensor& state, const Tensor& sums, const Tensor& phi_k,
                            const Tensor& identity, const Tensor& v, const Visibility& visible) {
  const int64_t B = phi_k.dim(0), G = phi_k.dim(1);
  const Tensor table = table_of(identity, v);
  const int64_t m = state.rank() == 4 ? state.dim(2) : phi_k.dim(3);
  check(state.shape() == Shape{B, G, m, table.dim(1) + v.dim(3)} && v.dim(1) == G &&
            sums.shape() == Shape{B, G, m} && sums.dtype() == Dtype::f64 &&
            (phi_k.dim(3) == m || phi_k.dim(3) == feature_columns(m, phi_k.device())) &&
            (!identity.defined() || table.dim(0) >= phi_k.dim(2)),
        "linear_attention_state: ", state.shape(), " and ", sums.shape(), " do not fit phi_k ",
        phi_k.shape(), ", v ", v.shape(), " and the table ", table.shape());
  BRINE_CALL(state, linear_attention_state, state, sums, phi_k.detach().slice(3, 0, m).contiguous(),
             table, v.detach().contiguous(), visible);
}

Tensor linear_attention_step(const Tensor& state, const Tensor& sums, const Tensor& phi_q,
                             const Tensor& phi_k, const Tensor& identity, const Tensor& v,
                             const Tensor& at, double eps) {
  const char* op = "linear_attention_step";
  const int64_t B = state.dim(0), m = state.dim(2), e = state.dim(3), H = phi_q.dim(1);
  check(
      H % state.dim(1) == 0 && phi_q.shape() == Shape{B, H, 1, m} && phi_q.dtype() == state.dtype(),
      op, ": phi_q must be ", state.dtype(), " [", B, ", a multiple of ", state.dim(1), ", 1, ", m,
      "], got ", phi_q.dtype(), " ", phi_q.shape());
  check_row(op, phi_k, state, m);
  const Tensor table = table_of(identity, v);
  check_row(op, v, state, e - table.dim(1));
  const int64_t last = identity.defined() ? table.dim(0) - 1 : std::numeric_limits<int64_t>::max();
  check_positions(op, "position", at, B, last);
  const int64_t G = state.dim(1), columns = table.dim(1);
  const Tensor q = phi_q.detach(), k = phi_k.detach();
  Tensor values = v.detach();
  if (columns > 0) {
    const Tensor rows = reshape(gather(table, 0, reshape(at, {B, 1})), {B, 1, 1, columns});
    values = concat({broadcast_to(rows, {B, G, 1, columns}), values}, 3);
  }
  copy_into(state, state + reshape(k, {B, G, m, 1}) * values);
  copy_into(sums, sums + reshape(k, {B, G, m}).to(Dtype::f64));
  const Tensor den = group_matmul(q.to(Dtype::f64), reshape(sums + eps, {B, G, m, 1}), false);
  return group_matmul(q, state, false) / den.to(q.dtype());
}

}  // namespace brine
