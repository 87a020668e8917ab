// Philox4x32-10 (Salmon et al. 2011): random numbers as a function of (seed, stream, counter), so
// that every device, thread count and recomputation draws the same ones.
#pragma once

#include <cmath>
#include <cstdint>

#include "tensor/base/host_device.h"

namespace brine {

struct Philox {
  uint32_t v[4];
};

// Four 32-bit words of the block `counter` of (seed, stream).
BRINE_HD Philox philox(uint64_t seed, uint64_t stream, uint64_t counter) {
  uint32_t c0 = uint32_t(counter), c1 = uint32_t(counter >> 32);
  uint32_t c2 = uint32_t(stream), c3 = uint32_t(stream >> 32);
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    uint64_t p0 = uint64_t(0xD2511F53u) * c0, p1 = uint64_t(0xCD9E8D57u) * c2;
    uint32_t n0 = uint32_t(p1 >> 32) ^ c1 ^ k0, n2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
    c1 = uint32_t(p1);
    c3 = uint32_t(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Uniform in (0, 1): never 0, so that a logarithm is finite.
BRINE_HD double uniform_of(uint32_t word) { return (double(word) + 0.5) * (1.0 / 4294967296.0); }

// A position in the random sequence, from which an op draws element i as block first + i / 4, word
// i % 4. It is small enough for a backward lambda to capture, which then draws the same numbers.
struct RandomSlice {
  uint64_t seed = 0, stream = 0, first = 0;

  BRINE_HD uint32_t word(uint64_t i) const { return philox(seed, stream, first + i / 4).v[i % 4]; }
  BRINE_HD double uniform(uint64_t i) const { return uniform_of(word(i)); }
  // Standard normal by Box-Muller; element i takes a separate block.
  double normal(uint64_t i) const {
    Philox p = philox(seed, stream, first + i);
    return std::sqrt(-2 * std::log(uniform_of(p.v[0]))) *
           std::cos(6.283185307179586 * uniform_of(p.v[1]));
  }
};

// The stateful generator: it returns slices and advances. Its three numbers are its whole state,
// saved in checkpoints and restored by recomputation.
struct RandomStream {
  uint64_t seed = 0, stream = 0, counter = 0;

  // Reserves n draws (blocks are counted as if each draw took one: normals do).
  RandomSlice take(uint64_t n) {
    RandomSlice slice{seed, stream, counter};
    counter += n;
    return slice;
  }
};

}  // namespace brine
