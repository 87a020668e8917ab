// Batches of similar lengths.
#include "data/corpus/buckets.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "tensor/base/error.h"

using namespace brine;
using namespace brine::data;

namespace {

std::vector<int64_t> some_lengths(int64_t n) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < n; ++i) lengths.push_back(5 + i * i % 97);
  return lengths;
}

// Tokens that batches 0 .. n - 1 spend, padding and all.
int64_t padded(LengthBuckets buckets, const std::vector<int64_t>& lengths, int64_t n, int64_t B) {
  int64_t sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    int64_t longest = 0;
    for (int64_t e : buckets.batch(i, B)) longest = std::max(longest, lengths[size_t(e)]);
    sum += longest * B;
  }
  return sum;
}

}  // namespace

TEST_CASE("buckets: every example once an epoch, in full batches without repetition") {
  for (int64_t N : {1, 5, 64, 100, 1000}) {
    for (int64_t B : {1, 4, 7}) {
      CAPTURE(N);
      CAPTURE(B);
      LengthBuckets buckets(some_lengths(N), 3);
      // N pools contain whole epochs whatever their order.
      int64_t pool = std::clamp<int64_t>(N / B, 1, 32);
      std::vector<int64_t> seen(size_t(N), 0);
      int64_t repeats = 0;
      for (int64_t n = 0; n < N * pool; ++n) {
        std::vector<int64_t> batch = buckets.batch(n, B);
        REQUIRE(int64_t(batch.size()) == B);
        for (int64_t e : batch) ++seen[size_t(e)];
        repeats += std::set<int64_t>(batch.begin(), batch.end()).size() < batch.size();
      }
      if (B <= N) CHECK(repeats <= pool * B);  // the batches on borders of epochs
      for (int64_t count : seen) CHECK(count == pool * B);
    }
  }
}

TEST_CASE("buckets: a batch is a function of seed and number") {
  LengthBuckets one(some_lengths(500), 9), two(some_lengths(500), 9), other(some_lengths(500), 10);
  std::vector<std::vector<int64_t>> batches;
  for (int64_t n = 0; n < 150; ++n) batches.push_back(one.batch(n, 8));
  int different = 0;
  for (int64_t n = 149; n >= 0; --n) {  // backwards: as a resumed run would begin anywhere
    CHECK(two.batch(n, 8) == batches[size_t(n)]);
    different += other.batch(n, 8) != batches[size_t(n)];
  }
  CHECK(different > 140);
  // Epochs differ: 500 / 8 is not a whole number of batches, so compare orders, not batches.
  CHECK(batches[0] != batches[63]);
}

TEST_CASE("buckets: padding shrinks to little; the lengths of following batches do not rise") {
  std::vector<int64_t> lengths = some_lengths(4000);
  int64_t n = 250, B = 16;  // one epoch
  int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t(0));
  int64_t plain = padded(LengthBuckets(lengths, 1, 1), lengths, n, B);
  int64_t sorted = padded(LengthBuckets(lengths, 1), lengths, n, B);
  CHECK(double(plain) > 1.5 * double(tokens));
  CHECK(double(sorted) < 1.1 * double(tokens));
  LengthBuckets buckets(lengths, 1);
  int rises = 0;
  for (int64_t i = 1; i < 32; ++i) {
    rises += lengths[size_t(buckets.batch(i, B)[0])] > lengths[size_t(buckets.batch(i - 1, B)[0])];
  }
  CHECK(rises > 5);
  CHECK(rises < 26);
}

TEST_CASE("buckets: evaluation sees every example once, similar lengths together") {
  std::vector<int64_t> lengths = some_lengths(103);
  LengthBuckets buckets(lengths, 1);
  std::vector<int64_t> seen;
  int64_t last = 0;
  for (const auto& batch : buckets.in_order(10)) {
    CHECK(batch.size() <= 10);
    for (int64_t e : batch) {
      CHECK(lengths[size_t(e)] >= last);
      last = lengths[size_t(e)];
      seen.push_back(e);
    }
  }
  CHECK(buckets.in_order(10).size() == 11);
  std::sort(seen.begin(), seen.end());
  for (int64_t i = 0; i < 103; ++i) CHECK(seen[size_t(i)] == i);
  CHECK_THROWS_WITH_AS(LengthBuckets({}, 1), "buckets: no examples", Error);
  CHECK_THROWS_WITH_AS(buckets.batch(-1, 4), "buckets: batch -1 of 4 examples", Error);
}

TEST_CASE("lengths of batches: few of every doubling, with little padding") {
  std::set<int64_t> eights, few;
  for (int64_t n = 1; n <= 512; ++n) {
    CAPTURE(n);
    const LengthSteps every{.least = 8}, parts{.least = 8, .parts = 8};
    const int64_t all = every.round_up(n), some = parts.round_up(n);
    CHECK(all == (n + 7) / 8 * 8);
    CHECK(some >= n);
    CHECK(some - all < std::max<int64_t>(n / 8, 1));
    CHECK(some % 8 == 0);
    CHECK(parts.round_up(some) == some);
    eights.insert(all);
    few.insert(some);
  }
  CHECK(eights.size() == 64);
  CHECK(few.size() == 32);
  CHECK(LengthSteps{}.round_up(13) == 13);
  CHECK(LengthSteps{.parts = 8}.round_up(0) == 0);
}
