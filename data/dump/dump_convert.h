// Conversion between f32 and the stored types. Plain loops: they run in helper threads, which never
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
// x[i] = stored[i].
void load_values(const void* stored, int64_t count, Dtype dtype, float* x);

// [H, T, T] -> [H, T (T + 1) / 2] in place or to an address before it; row t keeps t + 1 values.
void pack_rows(const float* x, int64_t heads, int64_t tokens, float* packed);
// The inverse; hidden keys become 0. The two do not overlap.
void unpack_rows(const float* packed, int64_t heads, int64_t tokens, float* x);

}  // namespace brine::data
