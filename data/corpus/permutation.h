// The order in which an epoch visits its windows: a function of (n, seed, epoch) only, so that a
// resumed run and a run with other threads use the same one.
#pragma once

#include <cstdint>
#include <vector>

namespace brine::data {

// A uniformly drawn permutation of 0 .. n-1; every (seed, epoch) has a different one.
std::vector<int64_t> permutation(int64_t n, uint64_t seed, uint64_t epoch);

// Item i of another such order, computed individually and without memory, for n of any size: a
// Feistel network over Philox. It randomises, but cannot reach every permutation.
int64_t permuted(int64_t i, int64_t n, uint64_t seed, uint64_t epoch);

}  // namespace brine::data
