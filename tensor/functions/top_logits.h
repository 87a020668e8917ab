// The kept part of a teacher's logits; not differentiated.
#pragma once

#include "tensor/types.h"

namespace brine {

// The n largest of each row of the logits f32 [R..., V], 1 <= n <= V.
TopLogits largest_logits(const Tensor& logits, int64_t n);
// As above if 0 < n < V, otherwise the logits [R, V] themselves, without ids.
TopLogits top_logits(const Tensor& logits, int64_t n);
// [R] of the rows of x [R..., V], f32 or f64.
Tensor log_sum_exp(const Tensor& x);

}  // namespace brine
