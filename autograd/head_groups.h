// Heads of queries that share the keys and values of a group.
#pragma once

#include "tensor/tensor.h"

namespace brine {

// to [B, G, T, d] += the sums of heads [B, H, T, d] over each group: head h belongs to group
// h G / H. Off the tape.
void add_groups(const Tensor& to, const Tensor& heads);

}  // namespace brine
