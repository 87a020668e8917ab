// Gradients of slots, and their sum by the definition of the tree.
#pragma once

#include <cmath>
#include <cstring>
#include <vector>

#include "tensor/base/random.h"
#include "tensor/comm/parts.h"
#include "tensor/tensor.h"

namespace brine::test {

// Values of very different sizes, so that every other order of additions has other bits.
inline std::vector<std::vector<float>> gradients_of(int64_t slots, int64_t n) {
  std::vector<std::vector<float>> all;
  for (int64_t s = 0; s < slots; ++s) {
    const RandomSlice random{.seed = 5, .stream = uint64_t(s)};
    std::vector<float> values;
    for (int64_t i = 0; i < n; ++i)
      values.push_back(
          float(random.normal(uint64_t(2 * i)) * std::exp(4 * random.normal(uint64_t(2 * i + 1)))));
    all.push_back(std::move(values));
  }
  return all;
}

// Elements of the buckets of one rank.
inline int64_t elements_in_buckets(int64_t n, int rank, int ranks) {
  const int64_t buckets = buckets_of(n, ranks);
  int64_t sum = 0;
  for (int64_t b = rank; b < buckets; b += ranks) sum += bucket_of(n, b, buckets).size();
  return sum;
}

// The definition: the left child has the largest power of two that is smaller than the node.
inline std::vector<float> tree_sum(const std::vector<std::vector<float>>& all, size_t begin,
                                   size_t end) {
  if (end - begin == 1) return all[begin];
  size_t left = 1;
  while (2 * left < end - begin) left *= 2;
  std::vector<float> a = tree_sum(all, begin, begin + left), b = tree_sum(all, begin + left, end);
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

inline bool same_bits(const Tensor& a, const std::vector<float>& b) {
  return std::memcmp(a.raw(), b.data(), b.size() * sizeof(float)) == 0;
}

}  // namespace brine::test
