// Linear attention of one new token of every sequence, from running sums.
#include "autograd/ops_estimator.h"
#include "autograd/step_checks.h"
#include "tensor/kernels/estimator.h"

namespace brine {

void linear_attention_state(const Tensor& state, const Tensor& sums, const Tensor& phi_k,
                            const Tensor& identity, const Tensor& v, const Visibility& visible) {
  const int64_t B = phi_k.dim(0), H = phi_k.dim(1), m = phi_k.dim(3);
  check(state.shape() == Shape{B, H, m, identity.dim(1) + v.dim(3)} &&
            sums.shape() == Shape{B, H, m} && sums.dtype() == Dtype::f64 &&
            identity.dim(0) >= phi_k.dim(2),
        "linear_attention_state: ", state.shape(), " and ", sums.shape(), " do not fit phi_k ",
        phi_k.shape(), ", v ", v.shape(), " and the table ", identity.shape());
  BRINE_CALL(state, linear_attention_state, state, sums, phi_k.detach().contiguous(),
             identity.detach().contiguous(), v.detach().contiguous(), visible);
}

Tensor linear_attention_step(const Tensor& state, const Tensor& sums, const Tensor& phi_q,
                             const Tensor& phi_k, const Tensor& identity, const Tensor& v,
                             const Tensor& at, double eps) {
  const char* op = "linear_attention_step";
  const int64_t B = state.dim(0), H = state.dim(1), m = state.dim(2), e = state.dim(3);
  check_row(op, phi_q, state, m);
  check_row(op, phi_k, state, m);
  check_row(op, v, state, e - identity.dim(1));
  check_places(op, "place", at, B, identity.dim(0) - 1);
  Tensor y = Tensor::empty({B, H, 1, e}, v.dtype(), v.device());
  BRINE_CALL(y, linear_attention_step, y, state, sums, phi_q.detach(), phi_k.detach(),
             identity.detach().contiguous(), v.detach().contiguous(), at, eps);
  return y;
}

}  // namespace brine
