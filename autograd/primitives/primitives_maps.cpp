// The elementwise primitives: arithmetic and comparisons that broadcast, functions of one number.
// Gradients are written in the same ops.
#include <cmath>

#include "autograd/primitives/broadcast_internal.h"

namespace brine {

Tensor Operand::like(const Tensor& other) const {
  if (!is_number()) return tensor_;
  check(is_float(other.dtype()) || number_ == std::floor(number_), "operand: ", number_,
        " is not a whole number, and the other operand is ", other.dtype());
  return Tensor::full(Shape{}, number_, other.dtype(), other.device());
}

void check_computes(const char* op, const Tensor& x) {
  check(x.dtype() == Dtype::f32 || x.dtype() == Dtype::f64, op, ": got ", x.dtype(), " ", x.shape(),
        ", wanted f32 or f64");
}

int axis_of(const char* op, const Tensor& x, int axis) {
  check(axis >= -x.rank() && axis < x.rank(), op, ": axis ", axis, " is outside ", x.shape());
  return axis < 0 ? axis + x.rank() : axis;
}

namespace {

Shape join_shapes(const char* op, const Tensor& a, const Tensor& b) {
  check(a.device() == b.device(), op, ": one input is on ", a.device(), ", the other on ",
        b.device());
  const int rank = std::max(a.rank(), b.rank());
  Shape shape;
  for (int i = -rank; i < 0; ++i) {
    const int64_t m = a.rank() + i >= 0 ? a.dim(i) : 1, n = b.rank() + i >= 0 ? b.dim(i) : 1;
    check(m == n || m == 1 || n == 1, op, ": ", a.dtype(), " ", a.shape(), " and ", b.dtype(), " ",
          b.shape(), " do not broadcast to one shape");
    shape.push_back(m == 1 ? n : m);
  }
  return shape;
}

}  // namespace

Shape broadcast_shape(const char* op, const Tensor& a, const Tensor& b) {
  check(a.dtype() == b.dtype(), op, ": ", a.dtype(), " ", a.shape(), " and ", b.dtype(), " ",
        b.shape(), " must have one type");
  return join_shapes(op, a, b);
}

Tensor broadcast_view(const Tensor& x, const Shape& shape) {
  Shape strides;
  for (int i = -shape.rank(); i < 0; ++i) {
    strides.push_back(x.rank() + i >= 0 && x.dim(i) != 1 ? x.stride(i) : 0);
  }
  return x.detach().as_strided(shape, strides);
}

Tensor sum_to(const Tensor& gradient, const Shape& shape) {
  if (gradient.shape() == shape) return gradient;
  Shape kept;
  for (int i = shape.rank(); i < gradient.rank(); ++i) kept.push_back(1);
  for (int64_t n : shape) kept.push_back(n);
  Tensor y = Tensor::empty(kept, gradient.dtype(), gradient.device());
  BRINE_CALL(y, reduce, y, gradient, Reduction::sum);
  return y.view(shape);
}

Tensor broadcast_map(const char* name, BinaryOp op, const Tensor& a, const Tensor& b) {
  const Shape shape = broadcast_shape(name, a, b);
  check_computes(name, a);
  Tensor y = Tensor::empty(shape, a.dtype(), a.device());
  BRINE_CALL(y, map_binary, y, broadcast_view(a, shape), broadcast_view(b, shape), op);
  return y;
}

namespace {

struct Pair {
  Tensor a, b;
};

void check_operands(const char* op, const Operand& a, const Operand& b) {
  check(!a.is_number() || !b.is_number(), op, ": got two numbers, wanted a tensor");
  for (const Operand& x : {a, b}) {
    check(x.is_number() || x.tensor().defined(), op, ": got an undefined tensor");
  }
}

// Both operands as tensors.
Pair tensors(const char* op, const Operand& a, const Operand& b) {
  check_operands(op, a, b);
  return {a.like(b.tensor()), b.like(a.tensor())};
}

Tensor map_one(const char* name, UnaryOp op, const Tensor& x) {
  check_computes(name, x);
  Tensor y = Tensor::like(x);
  BRINE_CALL(y, map_unary, y, x.detach(), op);
  return y;
}

Tensor relation(const char* name, Relation relation, const Operand& left, const Operand& right) {
  const auto [a, b] = tensors(name, left, right);
  const Shape shape = broadcast_shape(name, a, b);
  Tensor y = Tensor::empty(shape, Dtype::u8, a.device());
  BRINE_CALL(y, compare, y, broadcast_view(a, shape), broadcast_view(b, shape), relation);
  return record(name, y, {a.detach(), b.detach()}, {});
}

}  // namespace

Tensor operator+(const Operand& a, const Operand& b) {
  const auto [u, v] = tensors("add", a, b);
  return add(u, v);
}

Tensor operator-(const Operand& a, const Operand& b) {
  const auto [u, v] = tensors("sub", a, b);
  return sub(u, v);
}

Tensor operator*(const Operand& a, const Operand& b) {
  check_operands("mul", a, b);
  if (a.is_number()) return scale(b.tensor(), a.number());
  return b.is_number() ? scale(a.tensor(), b.number()) : mul(a.tensor(), b.tensor());
}

Tensor operator/(const Operand& a, const Operand& b) { return div(a, b); }

Tensor operator-(const Tensor& x) { return scale(x, -1); }

Tensor div(const Operand& left, const Operand& right) {
  const auto [a, b] = tensors("div", left, right);
  Tensor y = broadcast_map("div", BinaryOp::div, a, b), v = b.detach();
  return record("div", y, {a, b},
                [=, of_a = a.shape()](const Tensor& dy, Gradients& grads) {
                  if (grads.wanted(0)) grads.set(0, sum_to(dy / v, of_a));
                  if (grads.wanted(1)) grads.set(1, sum_to(-(dy * y / v), v.shape()));
                },
                {v, y});
}

Tensor exp(const Tensor& x) {
  Tensor y = map_one("exp", UnaryOp::exp, x);
  return record("exp", y, {x}, [=](const Tensor& dy, Gradients& grads) { grads.set(0, dy * y); },
                {y});
}

Tensor sigmoid(const Tensor& x) {
  Tensor y = map_one("sigmoid", UnaryOp::sigmoid, x);
  return record("sigmoid", y, {x},
                [=](const Tensor& dy, Gradients& grads) { grads.set(0, dy * y * (1 - y)); }, {y});
}

Tensor tanh(const Tensor& x) {
  Tensor y = map_one("tanh", UnaryOp::tanh, x);
  return record("tanh", y, {x},
                [=](const Tensor& dy, Gradients& grads) { grads.set(0, dy * (1 - y * y)); }, {y});
}

Tensor log(const Tensor& x) {
  Tensor y = map_one("log", UnaryOp::log, x), u = x.detach();
  return record("log", y, {x}, [=](const Tensor& dy, Gradients& grads) { grads.set(0, dy / u); },
                {u});
}

Tensor sqrt(const Tensor& x) {
  Tensor y = map_one("sqrt", UnaryOp::sqrt, x);
  return record("sqrt", y, {x},
                [=](const Tensor& dy, Gradients& grads) { grads.set(0, 0.5 * dy / y); }, {y});
}

Tensor equal(const Operand& a, const Operand& b) {
  return relation("equal", Relation::equal, a, b);
}
Tensor not_equal(const Operand& a, const Operand& b) {
  return relation("not_equal", Relation::not_equal, a, b);
}
Tensor less(const Operand& a, const Operand& b) { return relation("less", Relation::less, a, b); }
Tensor less_equal(const Operand& a, const Operand& b) {
  return relation("less_equal", Relation::less_equal, a, b);
}
Tensor greater(const Operand& a, const Operand& b) {
  return relation("greater", Relation::greater, a, b);
}
Tensor greater_equal(const Operand& a, const Operand& b) {
  return relation("greater_equal", Relation::greater_equal, a, b);
}
Tensor logical_and(const Tensor& a, const Tensor& b) {
  return relation("logical_and", Relation::both, a, b);
}
Tensor where(const Tensor& condition, const Operand& left, const Operand& right) {
  check(condition.dtype() == Dtype::u8, "where: the condition is ", condition.dtype(), " ",
        condition.shape(), ", wanted u8");
  const auto [a, b] = tensors("where", left, right);
  const Shape of_values = broadcast_shape("where", a, b);
  const Tensor u = broadcast_view(a, of_values), v = broadcast_view(b, of_values);
  const Shape shape = join_shapes("where", condition, u);
  const Tensor chosen = broadcast_view(condition, shape);
  Tensor y = Tensor::empty(shape, a.dtype(), a.device());
  BRINE_CALL(y, where, y, chosen, broadcast_view(u, shape), broadcast_view(v, shape));
  return record("where", y, {a, b},
                [=, of_a = a.shape(), of_b = b.shape()](const Tensor& dy, Gradients& grads) {
                  if (grads.wanted(0)) grads.set(0, sum_to(where(chosen, dy, 0), of_a));
                  if (grads.wanted(1)) grads.set(1, sum_to(where(chosen, 0, dy), of_b));
                },
                {chosen});
}

}  // namespace brine
