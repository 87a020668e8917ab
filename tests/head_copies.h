// Keys and values of groups of heads, copied to every head of queries: how the oracles of ops that
// take groups see them.
#pragma once

#include "tensor/tensor.h"

namespace brine::test {

// x [B, G, R, C] on the CPU -> [B, H, R, C]: head h gets group floor(h G / H).
inline Tensor copied_heads(const Tensor& x, int64_t H) {
  const int64_t B = x.dim(0), G = x.dim(1);
  Tensor y = Tensor::empty({B, H, x.dim(2), x.dim(3)}, x.dtype());
  for (int64_t h = 0; h < H; ++h) {
    if (B > 0) assign(y.slice(1, h, 1), x.detach().slice(1, h * G / H, 1));
  }
  return y;
}

}  // namespace brine::test
