// Kernels on images [B, tokens, columns, channels], channels last. See kernel.h for the contract
// and types.h for the geometry (Convolution, Upsampling). Each section is a family.
#pragma once

#include "tensor/kernels/kernel.h"
#include "tensor/types.h"

namespace brine {

// ---- conv: convolutions, of whole images and of one row at a time
// y [B, before + R + after, W, O] from x [B, R', W, C], w [O, C, kT, kW] and b [O] (may be
// undefined), R = convolved_rows(R', kT): cross-correlation, y[i] reads x[i stride + k dilation].
// Columns are padded with zeros to keep W; kW is odd. x, w may be bf16 or f16 (the rest: f32).
BRINE_KERNEL(conv2d, Tensor y, Tensor x, Tensor w, Tensor b, Convolution conf)
// dx, all rows of x; dw and db are added to. Any of the three may be undefined (not needed). dy and
// y are whole buffers; their halo is not read. y is read when conf.relu.
BRINE_KERNEL(conv2d_backward, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w,
             Tensor y, Convolution conf)
// Decoding: window [B, R, W + 2 margin, C] moves up by one row and gets row [B, W, C] as its last
// row; the margins on both sides stay 0. Windows are strided in B.
BRINE_KERNEL(push_row, Tensor window, Tensor row, int64_t margin)
// Weights [O, C, kT, kW] in the order in which convolve_row reads them, [kT, kW, C, O + spare].
BRINE_KERNEL(pack_row_weights, Tensor packed, Tensor w)
inline int64_t packed_outputs(int64_t O) { return (O + 15) / 16 * 16; }  // O + spare
// y [B, W, O] = the newest row of a causal conv2d: cross-correlation of the window, whose R = (kT -
// 1) dilation + 1 rows end with the newest; margin = (kW - 1) / 2 dilation. b may be undefined. The
// bits of a sequence do not depend on other sequences.
BRINE_KERNEL(convolve_row, Tensor y, Tensor window, Tensor packed, Tensor b, int64_t dilation,
             bool relu)

// ---- upsample: the nearest row and column
// y [B, before + T + after, K, C] from x [B, R, W, C]: column c reads column floor(c W / K);
// R >= ceil(T / stride).
BRINE_KERNEL(upsample, Tensor y, Tensor x, Upsampling conf)
BRINE_KERNEL(upsample_backward, Tensor dx, Tensor dy, Upsampling conf)

}  // namespace brine
