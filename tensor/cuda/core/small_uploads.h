// Small tensors of the CPU on a device, uploaded once for the same bytes.
//
// Every op of a padded batch needs its lengths, every layer of a decoding step the positions of
// its tokens: a few numbers that the CPU makes and reads. Their bytes are the key, since the CPU
// may change them in place; comparing them costs far less than an upload.
#pragma once

#include <memory>

#include "tensor/tensor.h"

namespace brine::cuda {

// The bytes of a tensor of the CPU on the device, aligned to 256 and never written while the result
// lives; null if they are more than kMaxSmallUpload or none, or if x is on a device.
inline constexpr int64_t kMaxSmallUpload = 8192;
std::shared_ptr<const void> small_upload(const Tensor& x, Device device);

}  // namespace brine::cuda
