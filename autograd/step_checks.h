// Argument checks that the ops of decoding share: rows of one new token, and positions of
// sequences.
#pragma once

#include "tensor/tensor.h"

namespace brine {

// Throws unless `at` is i64 [B] with values in [0, limit].
void check_places(const char* op, const char* name, const Tensor& at, int64_t B, int64_t limit);
// Throws unless row is [B, H, 1, columns] with B, H and type of `like`.
void check_row(const char* op, const Tensor& row, const Tensor& like, int64_t columns);

}  // namespace brine
