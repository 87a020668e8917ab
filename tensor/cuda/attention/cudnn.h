// Attention in 16 bits by cuDNN, if it is found: the interface, in terms of sizes only. A call
// returns whether it did the work: false, with nothing done, when cuDNN is missing, disabled, or
// has no deterministic algorithm; then Brine's kernels run.
//
// There are three providers: tensor/cuda/cudnn/ with cuDNN's graphs,
// tensor/cuda/absent/no_cudnn.cpp in builds without its headers, and slow sums in
// tests/cuda/emulator/, which a test has to enable.
#pragma once

#include <compare>
#include <cstdint>

#include "tensor/base/dtype.h"
#include "tensor/device/device.h"

namespace brine::cuda {

// False when the call below returns false.
bool cudnn_serves();

// softmax(scale q k^T) v of packed q, k, v [B, H, T, d] of `type`, forward.
struct FusedAttention {
  Dtype type = Dtype::bf16;
  int64_t B = 0, H = 0, T = 0, d = 0;
  bool causal = false, padded = false;

  auto operator<=>(const FusedAttention&) const = default;
};
struct FusedAttentionData {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  const int32_t* lengths = nullptr;  // [B], 1 to T, where padded; rows beyond are not defined
  void* y = nullptr;                 // [B, T, H, d] of `type`
  float* lse = nullptr;              // [B, H, T]
  float scale = 1;
};
bool cudnn_attention(const FusedAttention& attention, const FusedAttentionData& data,
                     Device device);

}  // namespace brine::cuda
