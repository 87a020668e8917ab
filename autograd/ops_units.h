// Sums by units of rows, from which a decoding state starts after its prompt (estimator/prior.cpp).
#pragma once

#include "tensor/tensor.h"

namespace brine {

// The sums [B, G, rows, m], f64 or of x's type, of the rows of x [B, G, T, m] before lengths[b] by
// units of units[b] rows, both i64 [B]; 0 beyond them. In f64. No gradient.
Tensor sum_units(const Tensor& x, const Tensor& lengths, const Tensor& units, int64_t rows,
                 Dtype type);

}  // namespace brine
