// Random integers of generated tasks: a function of (seed, stream) on every machine.
#pragma once

#include <cstdint>

#include "tensor/base/random.h"

namespace brine::data {

class LraDraws {
 public:
  LraDraws(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream | kStreams) {}

  // Uniform in [0, n), 0 < n <= 2^16; the bias is below n / 2^32.
  int64_t below(int64_t n) { return int64_t(uint64_t(word()) * uint64_t(n) >> 32); }
  // Uniform in [low, high].
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool chance(double probability) { return uniform_of(word()) < probability; }

 private:
  // Separates these streams from those that layers and permutations use with the same seed.
  static constexpr uint64_t kStreams = uint64_t(0x4c5241) << 32;

  uint32_t word() {
    if (at_ % 4 == 0) block_ = philox(seed_, stream_, at_ / 4);
    return block_.v[at_++ % 4];
  }

  uint64_t seed_, stream_, at_ = 0;
  Philox block_ = {};
};

}  // namespace brine::data
