// Helpers of the primitives: broadcast shapes, checks, axes.
#pragma once

#include "autograd/ops.h"
#include "tensor/kernels/primitives.h"

namespace brine {

// The common shape of a and b. Throws when they do not broadcast, or differ in type or device.
Shape broadcast_shape(const char* op, const Tensor& a, const Tensor& b);

// x as a view of that shape, off the tape, with a stride of 0 along repeated axes. The shapes must
// broadcast.
Tensor broadcast_view(const Tensor& x, const Shape& shape);

// The gradient of an input of this shape from the gradient of its repetitions: their sum.
Tensor sum_to(const Tensor& gradient, const Shape& shape);

// op(a, b) of two tensors, off the tape.
Tensor broadcast_map(const char* name, BinaryOp op, const Tensor& a, const Tensor& b);

// Throws when x is neither f32 nor f64.
void check_computes(const char* op, const Tensor& x);

// An axis of x, counted from the front. Throws when x has no such axis.
int axis_of(const char* op, const Tensor& x, int axis);

}  // namespace brine
