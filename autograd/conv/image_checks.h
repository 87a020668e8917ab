// Argument checks that the image ops share.
#pragma once

#include "tensor/tensor.h"

namespace brine {

// Throws unless x is an f32 or f64 image [B, tokens, columns, channels].
void check_image(const char* op, const Tensor& x);
// Throws unless lengths is undefined or contiguous i64 [B].
void check_lengths(const char* op, const Tensor& lengths, int64_t B);

}  // namespace brine
