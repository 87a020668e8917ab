// What is kept of a teacher's logits. See kernel.h for the contract.
#pragma once

#include "tensor/kernels/kernels.h"

namespace brine {

// values [R, n] = the n largest of each row of x [R, V] in falling order (of equal ones the smaller
// id first), ids i32 [R, n] their places, lse [R] the log-sum-exp of the whole row. f32. Rows with
// values that are not finite give an lse that is not, or the values themselves.
BRINE_KERNEL(top_logits, Tensor values, Tensor ids, Tensor lse, Tensor x)

}  // namespace brine
