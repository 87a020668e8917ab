// The public ops on images [B, tokens, columns, channels]; ops.h includes this header.
#pragma once

#include "autograd/node.h"
#include "tensor/types.h"

namespace brine {

// ---- conv.cpp
// x [B, R', W, C] including the halo rows that the convolution reads, w [O, C, kT, kW], b [O] or
// undefined -> [B, before + R + after, W, O]. See tensor/types.h for the geometry.
Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& b, const Convolution& conf = {});

// A causal convolution of one new row, off the tape:
// window [B, R, W + 2 margin, C] moves up by one row and gets row [B, W, C] as its last row; its
// margins stay 0. `window` may be a part of a larger tensor.
void push_row(const Tensor& window, const Tensor& row, int64_t margin);
// The newest row of the convolution -> [B, W, O], from a window of kT rows with margins of
// (kW - 1) / 2 columns; w and b as above, of conf the ReLU alone. The bits of a
// sequence do not depend on other sequences.
Tensor convolve_row(const Tensor& window, const Tensor& w, const Tensor& b,
                    const Convolution& conf);

// ---- upsample.cpp
// x [B, R, W, C] -> [B, before + T + after, K, C], the nearest row and column.
Tensor upsample(const Tensor& x, const Upsampling& conf);

}  // namespace brine
