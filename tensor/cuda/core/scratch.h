// How much memory a kernel takes for what it sums up on the way, per turn of heads.
#pragma once

#include <cstdint>

namespace brine::cuda {

// In bytes. A kernel that needs more takes its heads in turns; one head gets what it needs. Tests
// make it small.
inline int64_t& scratch_limit() {
  static int64_t bytes = int64_t(512) << 20;
  return bytes;
}

// Heads of `all` that go together when each takes so many bytes.
inline int64_t heads_per_turn(int64_t all, int64_t bytes_per_head) {
  const int64_t fit = scratch_limit() / (bytes_per_head > 0 ? bytes_per_head : 1);
  return fit < 1 ? 1 : (fit < all ? fit : all);
}

}  // namespace brine::cuda
