// Fisher-Yates from counter-based random numbers: step i draws block i of the epoch's stream.
#include "data/corpus/permutation.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "tensor/base/error.h"
#include "tensor/base/random.h"

namespace brine::data {

std::vector<int64_t> permutation(int64_t n, uint64_t seed, uint64_t epoch) {
  check(n >= 0, "permutation: n = ", n, " must not be negative");
  // The high bits separate these streams from those that layers use with the same seed.
  const uint64_t stream = epoch | uint64_t(0x5045524d) << 32;
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), int64_t(0));
  for (int64_t i = n - 1; i > 0; --i) {
    Philox block = philox(seed, stream, uint64_t(i));
    uint64_t word = uint64_t(block.v[1]) << 32 | block.v[0];
    // The high half of a 64 x 64 bit product: the bias is below n / 2^64.
    auto j = int64_t(static_cast<unsigned __int128>(word) * uint64_t(i + 1) >> 64);
    std::swap(order[i], order[j]);
  }
  return order;
}

int64_t permuted(int64_t i, int64_t n, uint64_t seed, uint64_t epoch) {
  check(i >= 0 && i < n, "permutation: item ", i, " of ", n);
  const uint64_t stream = epoch | uint64_t(0x46455354) << 32;
  const int half = std::max(1, (int(std::bit_width(uint64_t(n - 1))) + 1) / 2);
  const uint64_t mask = (uint64_t(1) << half) - 1;
  auto at = uint64_t(i);
  do {  // the network permutes 4^half >= n numbers: those beyond n are mapped again until in range
    uint64_t left = at >> half, right = at & mask;
    for (uint64_t round = 0; round < 8; ++round) {
      const uint64_t mixed = left ^ (philox(seed, stream, right | round << 56).v[0] & mask);
      left = right;
      right = mixed;
    }
    at = left << half | right;
  } while (at >= uint64_t(n));
  return int64_t(at);
}

}  // namespace brine::data
