// Convolutions and attention in 16 bits by cuDNN, if it is found: the interface, in terms of sizes
// only. Each call returns whether it did the work: false, with nothing done, when cuDNN is missing,
// disabled, or has no deterministic algorithm; then Brine's kernels run.
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

// False when every call below returns false.
bool cudnn_serves();

enum class ConvPass { forward, data, weights };

// One pass of a convolution of images [B, rows, columns, channels], channels last. Image and filter
// [O, kT, kW, C] have `type`, and so does the result when it is an input; outputs are f32.
struct FusedConv {
  ConvPass pass = ConvPass::forward;
  Dtype type = Dtype::bf16;
  int64_t B = 0, rows_in = 0, W = 0, C = 0, O = 0, kT = 0, kW = 0, rows = 0;
  int64_t step = 0;  // numbers from one sequence of the result to the next
  int64_t dilation = 1, stride = 1, margin = 0;
  bool bias = false, relu = false;  // forward: relu(sums + bias)

  auto operator<=>(const FusedConv&) const = default;
};
struct FusedConvData {
  void* image = nullptr;       // [B, rows_in, W, C]
  void* filter = nullptr;      // [O, kT, kW, C]
  void* result = nullptr;      // [B, rows, W, O], sequences `step` apart
  const void* bias = nullptr;  // f32 [O]
};
bool cudnn_conv(const FusedConv& conv, const FusedConvData& data, Device device);

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
