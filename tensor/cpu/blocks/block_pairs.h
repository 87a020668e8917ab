// Attention over lists of key blocks on inputs in bf16, multiplied as pairs (flash_pairs.h).
#pragma once

#include "tensor/cpu/attention/flash_pairs.h"
#include "tensor/kernels/kernel.h"
#include "tensor/mask/blocks.h"

namespace brine::BRINE_CPU {

// Neighbouring keys are pairs: a block has whole ones.
inline bool takes_block_pairs(int64_t d, const BlockMask& mask) {
  return takes_pairs(d) && mask.block % 2 == 0;
}

void block_attention_pairs(Tensor y, Tensor lse, Tensor q, Tensor k, Tensor v, BlockMask mask,
                           Visibility visible, double scale);
void block_attention_pairs_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dy, Tensor q, Tensor k,
                                    Tensor v, Tensor y, Tensor lse, BlockMask mask,
                                    Visibility visible, double scale);

}  // namespace brine::BRINE_CPU
