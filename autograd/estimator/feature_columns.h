// The width of random features in memory.
#pragma once

#include <cstdint>

#include "tensor/device/device.h"

namespace brine {

// The columns of m random features: on a GPU rows are aligned to 16 bytes, which its kernels and
// cuBLASLt read in one load; columns from m on are 0, which changes no sum.
inline int64_t feature_columns(int64_t m, Device device) {
  return device.is_cuda() ? (m + 3) / 4 * 4 : m;
}

}  // namespace brine
