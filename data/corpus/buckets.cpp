// Pools of a permutation, sorted by length.
#include "data/corpus/buckets.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "data/corpus/permutation.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

// Separates the random order of a pool's batches from the permutations of the epochs.
constexpr uint64_t kPoolStreams = uint64_t(1) << 31;

}  // namespace

int64_t LengthSteps::round_up(int64_t tokens) const {
  int64_t step = std::max<int64_t>(least, 1);
  if (parts > 0 && tokens > 0) {
    step = std::max(step, int64_t(std::bit_ceil(uint64_t(tokens)) / 2) / parts);
  }
  return (tokens + step - 1) / step * step;
}

LengthBuckets::LengthBuckets(std::vector<int64_t> lengths, uint64_t seed, int64_t pool)
    : lengths_(std::move(lengths)), seed_(seed), pool_(pool) {
  check(!lengths_.empty(), "buckets: no examples");
  check(pool >= 1, "buckets: a pool of ", pool, " batches");
}

int64_t LengthBuckets::pool_size(int64_t B) const {
  return std::clamp<int64_t>(size() / B, 1, pool_);  // within an epoch
}

void LengthBuckets::sort_pool(int64_t pool, int64_t B) {
  int64_t P = pool_size(B), end = (pool + 1) * P * B;
  examples_.clear();
  for (int64_t at = pool * P * B; at < end;) {
    int64_t epoch = at / size(), from = at % size(), count = std::min(size() - from, end - at);
    std::vector<int64_t> order = permutation(size(), seed_, uint64_t(epoch));
    examples_.insert(examples_.end(), order.begin() + from, order.begin() + from + count);
    // Each epoch is sorted separately, so that only the batch at the border may contain an example
    // twice; the lengths ascend and descend alternately, so that this batch has either long or
    // short examples only.
    bool rise = epoch % 2 == 0;
    std::stable_sort(examples_.end() - count, examples_.end(), [&](int64_t a, int64_t b) {
      int64_t la = lengths_[size_t(a)], lb = lengths_[size_t(b)];
      return rise ? la < lb : la > lb;
    });
    at += count;
  }
  batches_ = permutation(P, seed_, kPoolStreams + uint64_t(pool));
  sorted_ = pool;
  sorted_B_ = B;
}

std::vector<int64_t> LengthBuckets::batch(int64_t n, int64_t B) {
  check(n >= 0 && B >= 1, "buckets: batch ", n, " of ", B, " examples");
  int64_t P = pool_size(B);
  if (n / P != sorted_ || B != sorted_B_) sort_pool(n / P, B);
  auto first = examples_.begin() + batches_[size_t(n % P)] * B;
  return {first, first + B};
}

std::vector<std::vector<int64_t>> LengthBuckets::in_order(int64_t B) const {
  check(B >= 1, "buckets: batches of ", B, " examples");
  std::vector<int64_t> order(lengths_.size());
  std::iota(order.begin(), order.end(), int64_t(0));
  std::ranges::stable_sort(order, {}, [&](int64_t i) { return lengths_[size_t(i)]; });
  std::vector<std::vector<int64_t>> out;
  for (auto at = order.begin(); at != order.end();) {
    auto end = at + std::min<int64_t>(B, order.end() - at);
    out.emplace_back(at, end);
    at = end;
  }
  return out;
}

}  // namespace brine::data
