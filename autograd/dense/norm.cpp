// LayerNorm and RMSNorm.
#include "autograd/dense/contiguous_internal.h"
#include "autograd/ops.h"
#include "tensor/kernels/dense.h"

namespace brine {

namespace {

// The parameters of a norm and what it does to rows; b is undefined for RMSNorm.
struct NormCall {
  const char* op;
  const Tensor &w, &b;
  double eps;
  bool centred;
};

void check_norm(const NormCall& call, const Tensor& x) {
  check(x.rank() >= 1 && x.dim(-1) > 0, call.op, ": x ", x.shape(), " has no last axis");
  const int64_t C = x.dim(-1);
  if (!call.centred) {
    return check(call.w.shape() == Shape{C} && call.w.dtype() == x.dtype(), call.op, ": weight ",
                 call.w.dtype(), " ", call.w.shape(), " must be ", x.dtype(), " [", C, "]");
  }
  check(call.w.shape() == Shape{C} && call.b.shape() == Shape{C}, call.op, ": weight ",
        call.w.shape(), " and bias ", call.b.shape(), " must be [", C, "]");
  check(call.w.dtype() == x.dtype() && call.b.dtype() == x.dtype(), call.op, ": x ", x.dtype(),
        ", weight ", call.w.dtype(), " and bias ", call.b.dtype(), " must have one type");
}

// What the backward pass reads.
struct NormStatistics {
  Tensor mean, rstd;  // [R]; no mean for RMSNorm
};

// The kernel: y, and with a residual `sum`, from x.
NormStatistics normalise(const NormCall& call, const Tensor& y, const Tensor& sum, const Tensor& x,
                         const Tensor& residual) {
  NormStatistics s;
  s.rstd = Tensor::empty({x.rows()}, x.dtype(), x.device());
  if (call.centred) s.mean = Tensor::like(s.rstd);
  BRINE_CALL(y, norm, y, sum, s.mean, s.rstd, x, residual, dense(call.w),
             call.centred ? dense(call.b) : Tensor(), call.eps);
  return s;
}

// Puts y on the tape as the norm of x, whose values are `in`. What newer ops gave x as its
// gradient, as a residual connection does, is added in the pass that computes the norm's share.
Tensor record_norm(const NormCall& call, const Tensor& y, const Tensor& x, const Tensor& in,
                   const NormStatistics& s) {
  const Tensor weight = call.w.detach().contiguous();
  return record(call.op, y, {x, call.w, call.b},
                [=](const Tensor& dy, Gradients& grads) {
                  const Tensor more = grads.take(0);
                  Tensor dx = grads.wanted(0) ? Tensor::like(dy) : Tensor();
                  Tensor dw = grads.wanted(1) ? grads.accumulate(1) : Tensor();
                  Tensor db = grads.wanted(2) ? grads.accumulate(2) : Tensor();
                  BRINE_CALL(dy, norm_backward, dx, dw, db, dy, more, in, weight, s.mean, s.rstd);
                  if (dx.defined()) grads.set(0, dx);
                },
                {in, weight});
}

Tensor norm(const NormCall& call, const Tensor& x) {
  check_norm(call, x);
  const Tensor y = Tensor::like(x), in = x.detach().contiguous();
  return record_norm(call, y, x, in, normalise(call, y, {}, in, {}));
}

NormedSum add_norm(const NormCall& call, const Tensor& x, const Tensor& residual) {
  check_norm(call, x);
  check(x.shape() == residual.shape() && x.dtype() == residual.dtype(), call.op, ": x ", x.dtype(),
        " ", x.shape(), " and residual ", residual.dtype(), " ", residual.shape(),
        " must have one shape and type");
  const Tensor y = Tensor::like(x), total = Tensor::like(x);
  const NormStatistics s =
      normalise(call, y, total, x.detach().contiguous(), residual.detach().contiguous());
  const Tensor sum = record("add", total, {x, residual}, [](const Tensor& dy, Gradients& grads) {
    grads.set(0, dy);
    grads.set(1, dy);
  });
  return {sum, record_norm(call, y, sum, total, s)};
}

}  // namespace

Tensor layernorm(const Tensor& x, const Tensor& w, const Tensor& b, double eps) {
  return norm({.op = "layernorm", .w = w, .b = b, .eps = eps, .centred = true}, x);
}

Tensor rmsnorm(const Tensor& x, const Tensor& w, double eps) {
  return norm({.op = "rmsnorm", .w = w, .b = {}, .eps = eps, .centred = false}, x);
}

NormedSum add_layernorm(const Tensor& x, const Tensor& residual, const Tensor& w, const Tensor& b,
                        double eps) {
  return add_norm({.op = "layernorm", .w = w, .b = b, .eps = eps, .centred = true}, x, residual);
}

NormedSum add_rmsnorm(const Tensor& x, const Tensor& residual, const Tensor& w, double eps) {
  return add_norm({.op = "rmsnorm", .w = w, .b = {}, .eps = eps, .centred = false}, x, residual);
}

}  // namespace brine
