// Conversion of f32 to the stored types. Plain loops: they run in helper threads, which never
// enter an OpenMP region. Internal to data/dump/.
#pragma once

#include <cstdint>
#include <string>

#include "tensor/base/dtype.h"

namespace brine::data {

// out[i] = x[i] as dtype. A value that is not finite, or outside the range of dtype, throws
// Error(where, ": ...").
void store_values(const float* x, int64_t count, Dtype dtype, void* out, const std::string& where);
// The same of values that are of this type already.
void copy_values(const void* x, int64_t count, Dtype dtype, void* out, const std::string& where);

}  // namespace brine::data
