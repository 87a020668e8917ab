// Sections 2 and 3 of docs/method.md: estimate -> selected columns -> M* as CSR -> sparse attention
// -> gates and average.
#pragma once

#include "autograd/ops.h"

namespace brine::sea {

// The mask M* of an estimate, with its intermediate tensors.
struct Mask {
  Selection selection;
  FlatCsr csr;
};

// estimate [B, H, T, K]; it gets no gradient. `keys` as in build_csr(). `forced`, u8 [B, H, T, K],
// replaces the columns that the estimate selects.
Mask make_mask(const Tensor& estimate, const Visibility& visible, const SelectConfig& config,
               int64_t keys = 0, const Tensor& forced = {});

// Gates of heads [H, 2] for T rows of B sequences: [B, H, T, 2].
Tensor gates_of_heads(const Tensor& gates, int64_t B, int64_t T);

// C_avg of v [B, G, T, d]: the running mean of v, [B, G, T, d] (causal), or the mean weighted by
// the estimate, [B, H, T, d]. Rows of padding are 0.
Tensor average_values(const Tensor& estimate, const Tensor& v, const Visibility& visible);

}  // namespace brine::sea
