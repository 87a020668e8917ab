// Kernels on images [B, tokens, columns, channels], channels last. See kernel.h for the contract
// and types.h for the geometry (Convolution, Upsampling). Each section is a family.
#pragma once

#include "tensor/kernels/kernel.h"
#include "tensor/types.h"

namespace brine {

// ---- conv: convolutions as products
// y [B, before + R + after, W, O] from x [B, R', W', C], w [O, C, kT, kW] and b [O] (may be
// undefined), R = convolved_rows(R', kT): cross-correlation, y[i] reads x[i stride + k].
// Columns are padded with zeros to keep W = W', unless x has the margins of zeros, W' = W + kW - 1;
// kW is odd. x, w may be bf16 or f16 (the rest: f32). The bits of a sequence do not
// depend on other sequences.
BRINE_KERNEL(conv2d, Tensor y, Tensor x, Tensor w, Tensor b, Convolution conf)
// dx, all rows of x; dw and db are added to. Any of the three may be undefined (not needed). dy and
// y are whole buffers; their halo is not read. y is read when conf.relu. W' = W. x must be finite
// in rows without a token: a GPU multiplies them by 0 for dw.
BRINE_KERNEL(conv2d_backward, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w,
             Tensor y, Convolution conf)

// ---- upsample: the nearest row and column
// y [B, before + T + after, K, C] from x [B, R, W, C]: column c reads column floor(c W / K);
// R >= ceil(T / stride).
BRINE_KERNEL(upsample, Tensor y, Tensor x, Upsampling conf)
BRINE_KERNEL(upsample_backward, Tensor dx, Tensor dy, Upsampling conf)

}  // namespace brine
