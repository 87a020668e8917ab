// The amount of scratch memory of a kernel for intermediate sums, per batch of heads.
#pragma once

#include <cstdint>

namespace brine::cuda {

// In bytes. A kernel that needs more processes its heads in batches; one head gets what it needs.
// Tests make it small.
inline int64_t& scratch_limit() {
  static int64_t bytes = int64_t(512) << 20;
  return bytes;
}

// The number of heads of `all` per batch when each needs this many bytes.
inline int64_t heads_per_batch(int64_t all, int64_t bytes_per_head) {
  const int64_t fit = scratch_limit() / (bytes_per_head > 0 ? bytes_per_head : 1);
  return fit < 1 ? 1 : (fit < all ? fit : all);
}

}  // namespace brine::cuda
