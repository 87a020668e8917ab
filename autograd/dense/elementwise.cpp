// Elementwise ops and ops that combine rows with one vector.
#include "autograd/dense/contiguous_internal.h"
#include "autograd/primitives/broadcast_internal.h"
#include "tensor/kernels/dense.h"

namespace brine {
namespace {

// a op b, broadcast; for two tensors of one shape there are kernels of their own.
Tensor combined(const char* name, BinaryOp op, const Tensor& a, const Tensor& b) {
  if (!(a.shape() == b.shape())) return broadcast_map(name, op, a, b);
  check(a.dtype() == b.dtype(), name, ": ", a.dtype(), " ", a.shape(), " and ", b.dtype(), " ",
        b.shape(), " must have one type");
  Tensor u = dense(a), v = dense(b), y = Tensor::like(a);
  if (op == BinaryOp::add) {
    BRINE_CALL(y, add, y, u, v);
  } else if (op == BinaryOp::sub) {
    BRINE_CALL(y, sub, y, u, v);
  } else {
    BRINE_CALL(y, mul, y, u, v);
  }
  return y;
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) {
  return record("add", combined("add", BinaryOp::add, a, b), {a, b},
                [of_a = a.shape(), of_b = b.shape()](const Tensor& dy, Gradients& grads) {
                  if (grads.wanted(0)) grads.set(0, sum_to(dy, of_a));
                  if (grads.wanted(1)) grads.set(1, sum_to(dy, of_b));
                });
}

Tensor sub(const Tensor& a, const Tensor& b) {
  return record("sub", combined("sub", BinaryOp::sub, a, b), {a, b},
                [of_a = a.shape(), of_b = b.shape()](const Tensor& dy, Gradients& grads) {
                  if (grads.wanted(0)) grads.set(0, sum_to(dy, of_a));
                  if (grads.wanted(1)) grads.set(1, -sum_to(dy, of_b));
                });
}

Tensor mul(const Tensor& a, const Tensor& b) {
  const bool same = a.shape() == b.shape();
  const Tensor u = same ? dense(a) : a.detach(), v = same ? dense(b) : b.detach();
  return record("mul", combined("mul", BinaryOp::mul, u, v), {a, b},
                [=](const Tensor& dy, Gradients& grads) {
                  if (grads.wanted(0)) grads.set(0, sum_to(dy * v, u.shape()));
                  if (grads.wanted(1)) grads.set(1, sum_to(dy * u, v.shape()));
                },
                {u, v});
}

Tensor scale(const Tensor& x, double factor) {
  Tensor y = Tensor::like(x);
  BRINE_CALL(y, axpby, y, dense(x), factor, 0.0);
  return record_one("scale", y, x, [=](const Tensor& dx, const Tensor& dy) {
    BRINE_CALL(dx, axpby, dx, dy, factor, 0.0);
  });
}

Tensor activate(const Tensor& x, Activation f) {
  const Tensor in = dense(x);
  Tensor y = Tensor::like(x);
  BRINE_CALL(y, activation, y, in, f);
  const Tensor saved = f == Activation::relu ? y : in;
  return record_one("activate", y, x,
                    [=](const Tensor& dx, const Tensor& dy) {
                      BRINE_CALL(dx, activation_backward, dx, dy, saved, f);
                    },
                    {saved});
}

Tensor dropout(const Tensor& x, double p, RandomStream& random) {
  check(p >= 0 && p < 1, "dropout: probability ", p, " is outside [0, 1)");
  if (p == 0) return x;
  const RandomSlice slice = random.take(uint64_t(x.numel()));
  Tensor y = Tensor::like(x);
  BRINE_CALL(y, dropout, y, dense(x), p, slice);
  return record_one("dropout", y, x, [=](const Tensor& dx, const Tensor& dy) {
    BRINE_CALL(dx, dropout, dx, dy, p, slice);
  });
}

Tensor scale_rows(const Tensor& x, const Tensor& s) {
  check(x.rank() >= 1 && x.dtype() == s.dtype() && s.numel() == x.rows(), "scale_rows: x ",
        x.dtype(), " ", x.shape(), " must have one row for each of s ", s.dtype(), " ", s.shape());
  Shape rows = x.shape();
  rows[x.rank() - 1] = 1;
  return mul(x, reshape(s, rows));
}

Tensor zero_padding(const Tensor& x, const Tensor& lengths) {
  check(x.rank() >= 2 && lengths.dtype() == Dtype::i64 && lengths.shape() == Shape{x.dim(0)},
        "zero_padding: lengths must be i64 [", x.rank() ? x.dim(0) : 0, "], got ", lengths.dtype(),
        " ", lengths.shape());
  Tensor kept = dense(lengths), y = Tensor::like(x);
  BRINE_CALL(y, zero_padding, y, dense(x), kept);
  return record_one(
      "zero_padding", y, x,
      [=](const Tensor& dx, const Tensor& dy) { BRINE_CALL(dx, zero_padding, dx, dy, kept); },
      {kept});
}

Tensor attach_loss(const Tensor& y, const Tensor& loss) {
  check(loss.numel() == 1, "attach_loss: the loss ", loss.shape(), " is not a scalar");
  const Shape shape = loss.shape();
  const Dtype dtype = loss.dtype();
  Tensor same = y.detach().as_strided(y.shape(), y.strides());
  return record("attach_loss", same, {y, loss}, [=](const Tensor& dy, Gradients& grads) {
    grads.set(0, dy);
    if (!grads.wanted(1)) return;
    Tensor one = Tensor::empty(shape, dtype, dy.device());
    BRINE_CALL(one, fill, one, 1.0);
    grads.set(1, one);
  });
}

}  // namespace brine
