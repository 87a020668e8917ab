// What ops share: their inputs as kernels take them, sums over heads.
#pragma once

#include "tensor/tensor.h"

namespace brine {

// x off the tape, copied where its elements are not contiguous.
inline Tensor dense(const Tensor& x) { return x.detach().contiguous(); }

// to [B, G, T, d] += the sums of heads [B, H, T, d] over each group: head h belongs to group
// h G / H. Off the tape.
void add_groups(const Tensor& to, const Tensor& heads);

// Puts y = softmax(scale scores) over any of its last axis on the tape; 0 elsewhere.
Tensor record_softmax(const char* op, const Tensor& y, const Tensor& scores, double scale);

}  // namespace brine
