// Batches of examples of similar lengths, so that dynamic padding wastes little.
#pragma once

#include <cstdint>
#include <vector>

namespace brine::data {

// The lengths to which batches are padded, so that few different ones occur: multiples of `least`,
// and where `parts`, a power of two, is positive no more than that many of every doubling of the
// length: at most 1 / parts of a batch is then padding that a multiple of `least` would not need.
struct LengthSteps {
  int64_t least = 1, parts = 0;
  // The smallest of them that is not below `tokens`.
  int64_t round_up(int64_t tokens) const;
};

// The examples are visited in a new permutation each epoch. A pool of at most `pool` batches of
// that order, limited to one epoch, is sorted by length and cut into batches, and the pool's
// batches are visited in a random order.
// Batch n of B examples is a function of (lengths, seed, n), so the position of a run is one
// number; batches are always full: they continue into the next epoch.
class LengthBuckets {
 public:
  // `lengths` by example, at least one. pool = 1: plain shuffled batches.
  LengthBuckets(std::vector<int64_t> lengths, uint64_t seed, int64_t pool = 32);

  int64_t size() const { return int64_t(lengths_.size()); }
  // The examples of batch n.
  std::vector<int64_t> batch(int64_t n, int64_t B);
  // All examples once, cut into batches of at most B of similar lengths: for evaluation.
  std::vector<std::vector<int64_t>> in_order(int64_t B) const;

 private:
  void sort_pool(int64_t pool, int64_t B);
  int64_t pool_size(int64_t B) const;

  std::vector<int64_t> lengths_;
  uint64_t seed_;
  int64_t pool_;
  int64_t sorted_ = -1, sorted_B_ = 0;  // the pool in examples_
  std::vector<int64_t> examples_, batches_;
};

}  // namespace brine::data
