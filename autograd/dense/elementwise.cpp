// Elementwise ops and ops that combine rows with one vector.
#include "autograd/dense/contiguous_internal.h"
#include "autograd/primitives/broadcast_internal.h"
#include "tensor/kernels/dense.h"

namespace brine {
namespace {

// Of two tensors of one shape.
void check_pair(const char* op, const Tensor& a, const Tensor& b) {
  check(a.dtype() == b.dtype(), op, ": ", a.dtype(), " ", a.shape(), " and ", b.dtype(), " ",
        b.shape(), " must have one type");
}

}  // namespace

namespace {

Tensor add_broadcast(const Tensor& a, const Tensor& b) {
  Tensor y = broadcast_map("add", BinaryOp::add, a, b);
  return record("add", y, {a, b},
                [of_a = a.shape(), of_b = b.shape()](const Tensor& dy, Gradients& grads) {
                  if (grads.wanted(0)) grads.set(0, sum_to(dy, of_a));
                  if (grads.wanted(1)) grads.set(1, sum_to(dy, of_b));
                });
}

Tensor sub_broadcast(const Tensor& a, const Tensor& b) {
  Tensor y = broadcast_map("sub", BinaryOp::sub, a, b);
  return record("sub", y, {a, b},
                [of_a = a.shape(), of_b = b.shape()](const Tensor& dy, Gradients& grads) {
                  if (grads.wanted(0)) grads.set(0, sum_to(dy, of_a));
                  if (grads.wanted(1)) grads.set(1, -sum_to(dy, of_b));
                });
}

Tensor mul_broadcast(const Tensor& a, const Tensor& b) {
  Tensor y = broadcast_map("mul", BinaryOp::mul, a, b), u = a.detach(), v = b.detach();
  return record("mul", y, {a, b},
                [=](const Tensor& dy, Gradients& grads) {
                  if (grads.wanted(0)) grads.set(0, sum_to(dy * v, u.shape()));
                  if (grads.wanted(1)) grads.set(1, sum_to(dy * u, v.shape()));
                },
                {u, v});
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) {
  if (!(a.shape() == b.shape())) return add_broadcast(a, b);
  check_pair("add", a, b);
  Tensor y = Tensor::like(a);
  BRINE_CALL(y, add, y, dense(a), dense(b));
  return record("add", y, {a, b}, [](const Tensor& dy, Gradients& grads) {
    grads.set(0, dy);
    grads.set(1, dy);
  });
}

Tensor sub(const Tensor& a, const Tensor& b) {
  if (!(a.shape() == b.shape())) return sub_broadcast(a, b);
  check_pair("sub", a, b);
  Tensor y = Tensor::like(a);
  BRINE_CALL(y, sub, y, dense(a), dense(b));
  return record("sub", y, {a, b}, [](const Tensor& dy, Gradients& grads) {
    grads.set(0, dy);
    if (!grads.wanted(1)) return;
    Tensor db = Tensor::like(dy);
    BRINE_CALL(db, axpby, db, dy, -1.0, 0.0);
    grads.set(1, db);
  });
}

Tensor mul(const Tensor& a, const Tensor& b) {
  if (!(a.shape() == b.shape())) return mul_broadcast(a, b);
  check_pair("mul", a, b);
  Tensor u = dense(a), v = dense(b), y = Tensor::like(a);
  BRINE_CALL(y, mul, y, u, v);
  return record("mul", y, {a, b},
                [=](const Tensor& dy, Gradients& grads) {
                  for (int i = 0; i < 2; ++i) {
                    if (!grads.wanted(i)) continue;
                    Tensor dx = Tensor::like(dy);
                    BRINE_CALL(dx, mul, dx, dy, i == 0 ? v : u);
                    grads.set(i, dx);
                  }
                },
                {u, v});
}

Tensor scale(const Tensor& x, double factor) {
  Tensor y = Tensor::like(x);
  BRINE_CALL(y, axpby, y, dense(x), factor, 0.0);
  return record("scale", y, {x}, [=](const Tensor& dy, Gradients& grads) {
    Tensor dx = Tensor::like(dy);
    BRINE_CALL(dx, axpby, dx, dy, factor, 0.0);
    grads.set(0, dx);
  });
}

Tensor activate(const Tensor& x, Activation f) {
  const Tensor in = dense(x);
  Tensor y = Tensor::like(x);
  BRINE_CALL(y, activation, y, in, f);
  const Tensor saved = f == Activation::relu ? y : in;
  return record("activate", y, {x},
                [=](const Tensor& dy, Gradients& grads) {
                  Tensor dx = Tensor::like(dy);
                  BRINE_CALL(dx, activation_backward, dx, dy, saved, f);
                  grads.set(0, dx);
                },
                {saved});
}

Tensor dropout(const Tensor& x, double p, RandomStream& random) {
  check(p >= 0 && p < 1, "dropout: probability ", p, " is outside [0, 1)");
  if (p == 0) return x;
  const RandomSlice slice = random.take(uint64_t(x.numel()));
  Tensor y = Tensor::like(x);
  BRINE_CALL(y, dropout, y, dense(x), p, slice);
  return record("dropout", y, {x}, [=](const Tensor& dy, Gradients& grads) {
    Tensor dx = Tensor::like(dy);
    BRINE_CALL(dx, dropout, dx, dy, p, slice);
    grads.set(0, dx);
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
  return record("zero_padding", y, {x},
                [=](const Tensor& dy, Gradients& grads) {
                  Tensor dx = Tensor::like(dy);
                  BRINE_CALL(dx, zero_padding, dx, dy, kept);
                  grads.set(0, dx);
                },
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
