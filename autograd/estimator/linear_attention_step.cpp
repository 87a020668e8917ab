// Linear attention of one new token of every sequence, from running sums.
#include <limits>

#include "autograd/ops.h"
#include "autograd/step_checks.h"
#include "tensor/kernels/estimator.h"

namespace brine {
namespace {

// Kernels take a table: one without columns in place of an undefined one.
Tensor table_of(const Tensor& identity, const Tensor& v) {
  if (identity.defined()) return identity.detach().contiguous();
  return Tensor::empty({1, 0}, v.dtype(), v.device());
}

}  // namespace

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
