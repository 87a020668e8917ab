// Fisher-Yates from counter-based random numbers: step i draws block i of the epoch's stream.
#include "data/permutation.h"

#include <numeric>
#include <utility>

#include "tensor/error.h"
#include "tensor/random.h"

namespace brine::data {

std::vector<int64_t> permutation(int64_t n, uint64_t seed, uint64_t epoch) {
  check(n >= 0, "permutation: n = ", n, " must not be negative");
  // The high bits keep these streams apart from those that layers draw from under the same seed.
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

}  // namespace brine::data
