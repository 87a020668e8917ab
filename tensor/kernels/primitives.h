// Kernels of the primitives: a strided map, a strided reduction, running sums and indexing. They
// are for prototypes, reference implementations and what takes little of a step.
//
// Inputs are strided, and a stride of 0 repeats an element, which implements broadcasting. Outputs
// are contiguous. The formulas are in scalar_ops.h; see kernel.h for the contract.
#pragma once

#include "tensor/kernels/kernel.h"

namespace brine {

enum class UnaryOp : uint8_t { exp, log, sqrt, sigmoid, tanh };
enum class BinaryOp : uint8_t { add, sub, mul, div };
enum class Relation : uint8_t {
  equal,
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal,
  both  // a and b, where 0 is false
};
enum class Reduction : uint8_t { sum, mean, max };

// ---- primitives: maps, reductions and indexing of strided tensors
// y = op(x), f32 or f64.
BRINE_KERNEL(map_unary, Tensor y, Tensor x, UnaryOp op)
// y = op(a, b), all of one shape, f32 or f64.
BRINE_KERNEL(map_binary, Tensor y, Tensor a, Tensor b, BinaryOp op)
// y u8 = 1 where the relation is true of a and b, else 0; a and b of one type, any.
BRINE_KERNEL(compare, Tensor y, Tensor a, Tensor b, Relation relation)
// y = a where the condition (u8) is not 0, else b; y, a and b of one type, any.
BRINE_KERNEL(where, Tensor y, Tensor condition, Tensor a, Tensor b)
// y has the rank of x, and size 1 in each reduced axis. f32 or f64. Sums are accumulated in f64.
// The mean of nothing is NaN, the maximum of nothing -infinity, that of a NaN with others NaN.
BRINE_KERNEL(reduce, Tensor y, Tensor x, Reduction reduction)
// y[i] = x[0] + ... + x[i] along the axis; with `reverse`, x[i] + ... + x[n - 1]. Sums in f64.
BRINE_KERNEL(cumsum, Tensor y, Tensor x, int axis, bool reverse)
// y[..., i, ...] = x[..., index[..., i, ...], ...] along the axis. The index, i64, has the shape of
// y; that of x may differ from it in the axis alone. Any type.
BRINE_KERNEL(gather, Tensor y, Tensor x, Tensor index, int axis)
// Adds: y[..., index[..., i, ...], ...] += x[..., i, ...], in the order of i. f32 or f64.
BRINE_KERNEL(scatter_add, Tensor y, Tensor x, Tensor index, int axis)

}  // namespace brine
