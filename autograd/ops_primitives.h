// The primitives: ops that broadcast, reduce and index along any axes. A new method, or the
// reference of a fused op, is composed of them in one file. They are short rather than fast.
//
// Broadcasting is NumPy's: shapes are aligned at their last axes, and an axis of size 1 repeats.
// The gradient of a repeated input is summed over the repetitions. Arithmetic takes f32 or f64;
// comparisons, where, gather and concat take any type. Conditions are u8, 0 or 1, off the tape.
#pragma once

#include "autograd/node.h"

namespace brine {

// An operand of an op: a tensor, or a number, which gets the type and device of the tensor
// operands.
class Operand {
 public:
  Operand(const Tensor& tensor) : tensor_(tensor) {}
  Operand(double number) : number_(number), is_number_(true) {}
  bool is_number() const { return is_number_; }
  const Tensor& tensor() const { return tensor_; }
  double number() const { return number_; }
  Tensor like(const Tensor& other) const;  // the tensor; or the number with other's type and device

 private:
  Tensor tensor_;
  double number_ = 0;
  bool is_number_ = false;
};

// ---- operators; add, sub and mul of two tensors are in ops.h
Tensor operator+(const Operand& a, const Operand& b);
Tensor operator-(const Operand& a, const Operand& b);
Tensor operator*(const Operand& a, const Operand& b);
Tensor operator/(const Operand& a, const Operand& b);
Tensor operator-(const Tensor& x);

// ---- functions of one or two numbers (autograd/primitives/primitives_maps.cpp)
Tensor div(const Operand& a, const Operand& b);
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sigmoid(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor sqrt(const Tensor& x);

// ---- conditions: u8, 1 where the relation is true (autograd/primitives/primitives_maps.cpp)
Tensor equal(const Operand& a, const Operand& b);
Tensor not_equal(const Operand& a, const Operand& b);
Tensor less(const Operand& a, const Operand& b);
Tensor less_equal(const Operand& a, const Operand& b);
Tensor greater(const Operand& a, const Operand& b);
Tensor greater_equal(const Operand& a, const Operand& b);
Tensor logical_and(const Tensor& a, const Tensor& b);
// a where the condition is not 0, else b. The input that is not chosen gets the gradient 0,
// whatever its value.
Tensor where(const Tensor& condition, const Operand& a, const Operand& b);

// ---- reductions over the axes given, which disappear or, with keep_axes, become 1; none given: y
// is x (primitives/primitives_axes.cpp)
Tensor sum(const Tensor& x, const std::vector<int>& axes, bool keep_axes = false);
Tensor mean(const Tensor& x, const std::vector<int>& axes, bool keep_axes = false);
// NaN when one is NaN. Elements that share the maximum share its gradient equally.
Tensor max(const Tensor& x, const std::vector<int>& axes, bool keep_axes = false);
// y[i] = x[0] + ... + x[i] along the axis.
Tensor cumsum(const Tensor& x, int axis);

// ---- shapes and indices (primitives/primitives_axes.cpp, primitives/primitives_indexing.cpp)
Tensor broadcast_to(const Tensor& x, const Shape& shape);
Tensor concat(const std::vector<Tensor>& parts, int axis);  // equal shapes but for the axis
// y[..., i, ...] = x[..., index[..., i, ...], ...] along the axis. The index, i32 or i64, has the
// rank of x and broadcasts to it on the other axes. An index outside x is an error; an index on a
// GPU is copied to the CPU for this check, which waits for the GPU.
Tensor gather(const Tensor& x, int axis, const Tensor& index);
Tensor arange(int64_t n, Dtype dtype = Dtype::f32, Device device = {});  // 0, 1, ..., n - 1

}  // namespace brine
