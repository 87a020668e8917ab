// Random features and linear attention.
#include <cmath>

#include "autograd/compute_type.h"
#include "autograd/ops_performer.h"
#include "tensor/csr.h"
#include "tensor/kernels/kernels_performer.h"
#include "tensor/meter/cost_meter.h"

namespace brine {
namespace {

bool computes(const Tensor& x) { return x.dtype() == Dtype::f32 || x.dtype() == Dtype::f64; }

void check_features(const char* op, const Tensor& x, const Tensor& projection, double eps,
                    const Tensor& lengths) {
  check(x.rank() == 4 && x.dim(3) > 0 && computes(x), op, ": x must be [B, H, T, d], got ",
        x.dtype(), " ", x.shape());
  check(projection.rank() == 2 && projection.dim(0) > 0 && projection.dim(1) == x.dim(3) &&
            projection.dtype() == x.dtype(),
        op, ": the projection must be ", x.dtype(), " [m, ", x.dim(3), "], got ",
        projection.dtype(), " ", projection.shape());
  check(eps > 0, op, ": eps is ", eps, ", must be above 0");
  check_visibility(op, {.causal = false, .lengths = lengths}, x.dim(0), x.dim(2));
}

double input_scale(const Tensor& x) { return std::pow(double(x.dim(-1)), -0.25); }

// [B, H, T, m] = x R^T d^-1/4
Tensor project(const Tensor& x, const Tensor& projection) {
  Tensor y =
      Tensor::empty({x.dim(0), x.dim(1), x.dim(2), projection.dim(0)}, x.dtype(), x.device());
  BRINE_CALL(y, matmul, y.view({y.rows(), y.dim(3)}), x.view({x.rows(), x.dim(3)}), projection,
             false, true, input_scale(x), 0.0);
  count_macs(double(y.numel()) * double(x.dim(3)));
  return y;
}

// dx (+)= dy R d^-1/4
void unproject(const Tensor& dx, const Tensor& dy, const Tensor& projection, double beta) {
  BRINE_CALL(dx, matmul, dx.view({dx.rows(), dx.dim(3)}), dy.view({dy.rows(), dy.dim(3)}),
             projection, false, false, input_scale(dx), beta);
}

}  // namespace

Tensor relu_features(const Tensor& x, const Tensor& projection, double eps, const Tensor& lengths) {
  check_features("relu_features", x, projection, eps, lengths);
  const Tensor R = projection.detach().contiguous();
  Tensor y = project(x.detach().contiguous(), R);
  BRINE_CALL(y, relu_features, y, eps, lengths);
  const Tensor phi = y.detach();
  const Shape shape = x.shape();
  return record("relu_features", y, {x},
                [=](const Tensor& dy, Gradients& grads) {
                  Tensor dprojected = Tensor::like(phi);
                  BRINE_CALL(phi, relu_features_backward, dprojected, dy, phi, eps, lengths);
                  Tensor dx = Tensor::empty(shape, phi.dtype(), phi.device());
                  unproject(dx, dprojected, R, 0);
                  grads.set(0, dx);
                },
                {phi, R});
}

Tensor softmax_features(const Tensor& x, const Tensor& projection, double eps,
                        const Tensor& lengths, FeatureSide side) {
  check_features("softmax_features", x, projection, eps, lengths);
  const Tensor R = projection.detach().contiguous(), in = x.detach().contiguous();
  Tensor y = project(in, R);
  BRINE_CALL(y, softmax_features, y, in, eps, lengths, side == FeatureSide::keys);
  const Tensor phi = y.detach();
  return record("softmax_features", y, {x},
                [=](const Tensor& dy, Gradients& grads) {
                  Tensor dprojected = Tensor::like(phi), dx = Tensor::like(in);
                  BRINE_CALL(phi, softmax_features_backward, dprojected, dx, dy, phi, in, eps,
                             lengths);
                  unproject(dx, dprojected, R, 1);
                  grads.set(0, dx);
                },
                {phi, in, R});
}

Tensor linear_attention(const Tensor& phi_q, const Tensor& phi_k, const Tensor& identity,
                        const Tensor& v, const Visibility& visible, double eps) {
  const char* op = "linear_attention";
  check(phi_q.rank() == 4 && phi_k.shape() == phi_q.shape() && computes(phi_q) &&
            phi_k.dtype() == phi_q.dtype(),
        op, ": phi_q and phi_k must be [B, H, T, m], got ", phi_q.shape(), " and ", phi_k.shape());
  const int64_t B = phi_q.dim(0), H = phi_q.dim(1), T = phi_q.dim(2);
  check(v.rank() == 4 && v.dtype() == phi_q.dtype() && v.dim(0) == B && v.dim(1) == H &&
            v.dim(2) == T,
        op, ": v must be ", phi_q.dtype(), " [", B, ", ", H, ", ", T, ", d], got ", v.dtype(), " ",
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
          ": identity [", B, ", ", T, ", i] that wants no gradient expected, got ",
          identity.shape());
    id = identity.detach().contiguous();
  }
  const Tensor q = phi_q.detach().contiguous(), k = phi_k.detach().contiguous();
  const Tensor values = v.detach().contiguous();
  const int64_t e = v.dim(3) + (id.defined() ? id.dim(-1) : 0);
  Tensor y = Tensor::empty({B, H, T, e}, v.dtype(), v.device());
  Tensor den = Tensor::empty({B, H, T}, v.dtype(), v.device());
  BRINE_CALL(y, linear_attention, y, den, q, k, id, values, visible, eps);
  count_macs(double(B * H) * linear_attention_macs(T, q.dim(3), e, visible.causal));
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

Tensor linear_pair(const Tensor& a, const Tensor& b, const Tensor& w, const Tensor& bias) {
  const int64_t A = a.dim(-1), B = b.dim(-1), R = a.rows();
  check(computes(a) && b.dtype() == a.dtype() && w.dtype() == a.dtype() && b.rows() == R &&
            w.rank() == 2 && w.dim(1) == A + B,
        "linear_pair: a ", a.shape(), ", b ", b.shape(), " and w ", w.shape(),
        " must be [R..., A], [R..., B] and [O, A + B] of one type");
  const int64_t O = w.dim(0);
  check(!bias.defined() || bias.shape() == Shape{O}, "linear_pair: bias ", bias.shape(),
        " must be [", O, "]");
  Shape shape = a.shape();
  shape[shape.rank() - 1] = O;
  Tensor y = Tensor::empty(shape, a.dtype(), a.device());
  const ProductInput taken{product_type(a.dtype(), R)};
  const Tensor xa = taken(a.detach().contiguous().view({R, A}));
  const Tensor xb = taken(b.detach().contiguous().view({R, B}));
  const Tensor wa = w.detach().slice(1, 0, A), wb = w.detach().slice(1, A, B);
  BRINE_CALL(y, linear, y.view({R, O}), xa, taken(wa), bias.defined() ? bias.detach() : Tensor());
  BRINE_CALL(y, matmul, y.view({R, O}), xb, taken(wb), false, true, 1.0, 1.0);
  count_macs(double(y.numel()) * double(A + B));
  const Shape shape_a = a.shape(), shape_b = b.shape();
  return record(
      "linear_pair", y, {a, b, w, bias},
      [=](const Tensor& dy, Gradients& grads) {
        const Tensor whole = dy.view({R, O}), d = taken(whole);
        auto input = [&](int i, const Tensor& part, const Shape& wanted) {
          if (!grads.wanted(i)) return;
          Tensor dx = Tensor::empty(wanted, whole.dtype(), whole.device());
          BRINE_CALL(d, matmul, dx.view({R, part.dim(1)}), d, taken(part), false, false, 1.0, 0.0);
          grads.set(i, dx);
        };
        input(0, wa, shape_a);
        input(1, wb, shape_b);
        if (grads.wanted(2)) {
          Tensor dw = grads.accumulate(2);
          BRINE_CALL(d, matmul, dw.slice(1, 0, A), d, xa, true, false, 1.0, 1.0);
          BRINE_CALL(d, matmul, dw.slice(1, A, B), d, xb, true, false, 1.0, 1.0);
        }
        if (grads.wanted(3)) BRINE_CALL(whole, sum_rows, grads.accumulate(3), whole);
      },
      {xa, xb, wa});
}

}  // namespace brine
