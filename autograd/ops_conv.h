// The public ops on images [B, tokens, columns, channels]; ops.h includes this page.
#pragma once

#include "autograd/node.h"
#include "tensor/kernels/kernels_conv.h"

namespace brine {

// x [B, R', W, C] with the rows around it that the convolution reads, w [O, C, kT, kW], b [O] or
// undefined -> [B, before + R + after, W, O]. See tensor/kernels/kernels_conv.h for the geometry.
Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& b, const Convolution& conf = {});

// x [B, R, W, C] -> [B, before + T + after, K, C], the nearest row and column.
Tensor upsample(const Tensor& x, const Upsampling& conf);

}  // namespace brine
