// Attention of 16-bit tensors by cuDNN, with the required work around it.
#pragma once

#include "tensor/kernels/attention.h"

namespace brine::cuda {

// As flash_attention(); rows of padding may be read, and must be finite. Returns whether it did the
// work: false, with nothing done, when cuDNN did not.
bool fused_flash_attention(Tensor y, Tensor lse, Tensor q, Tensor k, Tensor v,
                           const Visibility& visible, double scale);

}  // namespace brine::cuda
