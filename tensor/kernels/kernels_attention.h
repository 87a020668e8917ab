// Exact softmax attention by tiles, without a T x T map. See kernel.h for the contract.
#pragma once

#include "tensor/kernels/kernels.h"

namespace brine {

// ---- cpu/flash_attention.cpp; its gradients: cpu/flash_attention_backward.cpp
// y [B, T, H d] = softmax(scale q k^T) v over the visible keys, heads side by side; 0 in a row that
// sees none. lse [B, H, T] = log-sum-exp of each row's scaled scores (0 there). q, k, v [B, H, T,
// d], which may be bf16 or f16 (then the rest is f32).
BRINE_KERNEL(flash_attention, Tensor y, Tensor lse, Tensor q, Tensor k, Tensor v,
             Visibility visible, double scale)
// dq, dk, dv [B, H, T, d] from dy [B, T, H d]; y and lse as they were returned. Any of dq, dk, dv
// may be undefined (not wanted).
BRINE_KERNEL(flash_attention_backward, Tensor dq, Tensor dk, Tensor dv, Tensor dy, Tensor q,
             Tensor k, Tensor v, Tensor y, Tensor lse, Visibility visible, double scale)

}  // namespace brine
