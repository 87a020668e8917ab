// flash_attention and its gradients, for the tests that compare a device with the CPU.
#pragma once

#include "tensor/kernels/attention.h"
#include "tests/cuda/compare.h"

namespace brine::test {

// y, lse and the gradients of q, k, v for which a bit of `wanted` is set, those of k and v for
// every head of q; dy [B, T, H d] has the type of the sums.
inline std::vector<Tensor> flash_both_ways(const Tensor& q, const Tensor& k, const Tensor& v,
                                           const Tensor& dy, const Visibility& visible,
                                           double scale, int wanted = 7) {
  const Device device = q.device();
  const Tensor y = Tensor::like(dy);
  const Tensor lse = Tensor::empty({q.dim(0), q.dim(1), q.dim(2)}, dy.dtype(), device);
  BRINE_CALL(q, flash_attention, y, lse, q, k, v, visible, scale);
  auto fresh = [&](int bit) {
    return wanted & bit ? Tensor::empty(q.shape(), dy.dtype(), device) : Tensor();
  };
  const Tensor dq = fresh(1), dk = fresh(2), dv = fresh(4);
  BRINE_CALL(q, flash_attention_backward, dq, dk, dv, dy, q, k, v, y, lse, visible, scale);
  return {y, lse, dq, dk, dv};
}

}  // namespace brine::test
