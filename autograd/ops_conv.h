// The public ops on images [B, tokens, columns, channels]; ops.h includes this page.
#pragma once

#include "autograd/node.h"
#include "tensor/types.h"

namespace brine {

// ---- conv.cpp
// x [B, R', W, C] including the halo rows that the convolution reads, w [O, C, kT, kW], b [O] or
// undefined -> [B, before + R + after, W, O]. See tensor/types.h for the geometry.
Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& b, const Convolution& conf = {});

// ---- upsample.cpp
// x [B, R, W, C] -> [B, before + T + after, K, C], the nearest row and column.
Tensor upsample(const Tensor& x, const Upsampling& conf);

}  // namespace brine
