// Convolution and upsampling of images [B, tokens, columns, channels], channels last.
//
// The token axis is never padded here: x carries the rows before and after it that a convolution
// reads (zeros in the buffer), and y is born with the rows that the next one will read.
#pragma once

#include "tensor/kernels/kernel.h"

namespace brine {

struct Convolution {
  int64_t dilation = 1;  // on both axes
  int64_t stride = 1;    // on the token axis
  bool relu = false;
  int64_t halo_before = 0, halo_after = 0;  // rows of zeros around the result in y
  // Row i of the result of sequence b is 0 when i row_stride >= lengths[b]; i64 [B], or undefined.
  Tensor lengths = {};
  int64_t row_stride = 1;
};

// Rows that a convolution makes of `rows` rows; 0 or less when there are too few.
inline int64_t convolved_rows(int64_t rows, int64_t kernel, const Convolution& conf) {
  int64_t spare = rows - (kernel - 1) * conf.dilation - 1;
  return spare < 0 ? 0 : spare / conf.stride + 1;
}

// ---- cpu/conv.cpp; the weight gradient is in cpu/conv_weights.cpp
// y [B, before + R + after, W, O] from x [B, R', W, C], w [O, C, kT, kW] and b [O] (may be
// undefined), R = convolved_rows(R', kT): cross-correlation, y[i] reads x[i stride + k dilation].
// Columns are padded with zeros to keep W; kW is odd. x, w may be bf16 or f16 (the rest: f32).
BRINE_KERNEL(conv2d, Tensor y, Tensor x, Tensor w, Tensor b, Convolution conf)
// dx, all rows of x; dw and db are added to. Any of the three may be undefined (not wanted). dy and
// y are whole buffers; their halo is not read. y is read when conf.relu.
BRINE_KERNEL(conv2d_backward, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w,
             Tensor y, Convolution conf)

// ---- cpu/upsample.cpp
struct Upsampling {
  int64_t tokens = 0, columns = 0;          // T and K of the result
  int64_t stride = 1;                       // row t reads row floor(t / stride)
  int64_t halo_before = 0, halo_after = 0;  // rows of zeros around it
  Tensor lengths = {};                      // i64 [B] or undefined: row t is 0 when t >= lengths[b]
};

// y [B, before + T + after, K, C] from x [B, R, W, C]: column c reads column floor(c W / K);
// R >= ceil(T / stride).
BRINE_KERNEL(upsample, Tensor y, Tensor x, Upsampling conf)
BRINE_KERNEL(upsample_backward, Tensor dx, Tensor dy, Upsampling conf)

}  // namespace brine
