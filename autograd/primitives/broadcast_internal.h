// What the primitives share: shapes that broadcast, checks, axes.
#pragma once

#include "autograd/ops.h"
#include "tensor/kernels/primitives.h"

namespace brine {

// The shape that a and b have together. Throws when they do not fit, or differ in type or device.
Shape broadcast_shape(const char* op, const Tensor& a, const Tensor& b);

// x as a view of that shape, off the tape, with a stride of 0 where it repeats. The shapes fit.
Tensor broadcast_view(const Tensor& x, const Shape& shape);

// The gradient of an input of this shape from that of its repetitions: their sum.
Tensor sum_to(const Tensor& gradient, const Shape& shape);

// op(a, b) of two tensors, off the tape.
Tensor broadcast_map(const char* name, BinaryOp op, const Tensor& a, const Tensor& b);

// Throws when x is neither f32 nor f64.
void check_computes(const char* op, const Tensor& x);

// An axis of x, counted from the front. Throws when x has no such axis.
int axis_of(const char* op, const Tensor& x, int axis);

}  // namespace brine
