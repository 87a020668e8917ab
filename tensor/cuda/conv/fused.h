// Convolutions and attention of 16-bit tensors by cuDNN, with the required work around it. Each
// call returns whether it did the work: false, with nothing done, when cuDNN did not.
#pragma once

#include "tensor/kernels/conv.h"

namespace brine::cuda {

// As conv2d().
bool fused_conv2d(Tensor y, Tensor x, Tensor w, Tensor b, const Convolution& conf);
// As conv2d_backward(), dx and dw separately; both round dy to the type of x.
bool fused_data_gradient(Tensor dx, Tensor dy, Tensor x, Tensor w, Tensor y,
                         const Convolution& conf);
bool fused_weight_gradient(Tensor dw, Tensor dy, Tensor x, Tensor w, Tensor y,
                           const Convolution& conf);

// As flash_attention(); rows of padding may be read, and must be finite.
bool fused_flash_attention(Tensor y, Tensor lse, Tensor q, Tensor k, Tensor v,
                           const Visibility& visible, double scale);

}  // namespace brine::cuda
