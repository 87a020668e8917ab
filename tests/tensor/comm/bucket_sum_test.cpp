// The sum in buckets has the bits of the tree, in whichever order buckets are complete.
#include "tensor/comm/bucket_sum.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "tensor/comm/parts.h"
#include "tests/messages.h"
#include "tests/tensor/comm/thread_ranks.h"
#include "tests/tensor/comm/tree_sums.h"

namespace brine::test {
namespace {

using Gradients = std::vector<std::vector<float>>;

// This rank's slots but the last one, added up.
SlotSum::Rest first_slots(const Gradients& all, SlotRange own, const Tensor& buffer) {
  SlotSum sum(int64_t(all.size()), own);
  for (int64_t s = own.begin; s + 1 < own.end; ++s) {
    std::copy(all[size_t(s)].begin(), all[size_t(s)].end(), buffer.data<float>());
    sum.add(buffer);
  }
  return sum.take_rest();
}

struct Sent {
  int64_t early = 0, all = 0;
};

// The last slot's gradients come bucket by bucket, `early` of them before finish(), in an order of
// this rank's own.
Tensor sum_in_buckets(Communicator& ranks, const Gradients& all, double early, Sent& sent) {
  const int64_t slots = int64_t(all.size()), n = int64_t(all[0].size());
  const SlotRange own = slots_of(slots, ranks.rank(), ranks.size());
  const Tensor buffer = Tensor::empty({n});
  const SlotSum::Rest rest = first_slots(all, own, buffer);
  BucketSum sum(ranks, "gradients", buffer, slots, rest);
  const std::vector<float>& last = all[size_t(own.end - 1)];
  std::vector<int64_t> order(size_t(sum.buckets()));
  std::iota(order.begin(), order.end(), int64_t(0));
  std::shuffle(order.begin(), order.end(), std::minstd_rand(unsigned(ranks.rank()) + 7));
  std::fill(buffer.data<float>(), buffer.data<float>() + n, 1e30f);
  for (size_t i = 0; i < order.size(); ++i) {
    const SlotRange r = sum.range_of(order[i]);
    std::copy(last.begin() + r.begin, last.begin() + r.end, buffer.data<float>() + r.begin);
    if (double(i) < early * double(order.size())) sum.complete(order[i]);
    sum.advance();
  }
  sum.finish();
  sent = {sum.early_bytes(), sum.bytes()};
  return buffer;
}

TEST_CASE("buckets: the sum has the bits of the tree, whenever they are complete") {
  for (const int64_t slots : {2, 3, 4, 5, 7, 8, 12}) {
    for (const int64_t n : {1, 37, 1000}) {
      const Gradients all = gradients_of(slots, n);
      const std::vector<float> expected = tree_sum(all, 0, size_t(slots));
      for (int ranks = 2; ranks <= std::min<int64_t>(slots, 8); ++ranks) {
        for (const double early : {0.0, 0.5, 1.0}) {
          on_ranks(ranks, [&](Communicator& c) {
            Sent sent;
            const Tensor sum = sum_in_buckets(c, all, early, sent);
            check(same_bits(sum, expected), "rank ", c.rank(), " of ", ranks,
                  " has another sum of ", slots, " slots, n = ", n, ", early = ", early);
          });
        }
      }
    }
  }
}

TEST_CASE("buckets: ranks send what they do without, and count what left early") {
  const int64_t n = 4096, slots = 6;
  const Gradients all = gradients_of(slots, n);
  for (const int ranks : {2, 3, 4}) {
    on_ranks(ranks, [&](Communicator& c) {
      const auto trees = int64_t(subtrees_of(slots, slots_of(slots, c.rank(), ranks)).size());
      const int64_t own = elements_in_buckets(n, c.rank(), ranks);
      Sent none, some;
      sum_in_buckets(c, all, 0, none);
      sum_in_buckets(c, all, 1, some);
      const int64_t formula = 4 * (trees * (n - own) + (ranks - 1) * own);
      check(none.all == formula && some.all == formula, "rank ", c.rank(), " sent ", none.all,
            " and ", some.all, " bytes, the formula has ", formula);
      check(none.early == 0, none.early, " bytes left before a bucket was complete");
      check(some.early >= 4 * trees * (n - own), some.early, " bytes left early");
    });
  }
}

TEST_CASE("buckets: each element has one, each rank as many") {
  for (const int64_t n : {int64_t(1), int64_t(500), int64_t(4096), int64_t(125'000'000)}) {
    for (const int ranks : {2, 3, 8, 1000}) {
      const int64_t buckets = buckets_of(n, ranks);
      CHECK(buckets % ranks == 0);
      CHECK(2 * buckets <= Communicator::kPostNumbers);
      int64_t at = 0;
      for (int64_t b = 0; b < buckets; ++b) {
        CHECK(bucket_of(n, b, buckets).begin == at);
        at = bucket_of(n, b, buckets).end;
      }
      CHECK(at == n);
    }
  }
}

TEST_CASE("buckets: misuse, and a rank that does not come, are one line") {
  std::string twice, missing;
  on_ranks(3, [&](Communicator& c) {
    if (c.rank() == 1) return;
    c.set_limit(0.05);
    const Tensor buffer = Tensor::zeros({4096});
    BucketSum sum(c, "gradients of step 3", buffer, 3, {});
    sum.complete(1);
    const std::string again = message([&] { sum.complete(1); });
    const std::string end = message([&] { sum.finish(); });
    if (c.rank() != 0) return;
    twice = again;
    missing = end;
  });
  CHECK(twice == "gradients of step 3: bucket 1 is complete twice");
  CHECK(missing == "gradients of step 3: no answer from rank 1 within 0.05 seconds");
}

// Rank 1 gives rank 2 its part and leaves: rank 0, which lacks its own, knows who is missing. Rank
// 2 lacks the sums of both, and must not name rank 0 before that has spoken.
TEST_CASE("buckets: a rank that lacks only sums waits for the one that lacks parts") {
  std::vector<std::string> ends(3);
  on_ranks(3, [&](Communicator& c) {
    c.set_limit(0.05);
    const Tensor buffer = Tensor::zeros({4096});
    BucketSum sum(c, "gradients of step 3", buffer, 3, {});
    if (c.rank() == 1) {
      for (int64_t b = 2; b < sum.buckets(); b += 3) sum.complete(b);
      for (int i = 0; i < 10; ++i) sum.advance();  // until the messages have left
      c.barrier("all have begun", 1000);
      return;
    }
    c.barrier("all have begun", 1000);
    ends[size_t(c.rank())] = message([&] { sum.finish(); });
  });
  CHECK(ends[0] == "gradients of step 3: no answer from rank 1 within 0.05 seconds");
  CHECK(ends[2] == "gradients of step 3: no answer from ranks 0, 1 within 0.1 seconds");
}

}  // namespace
}  // namespace brine::test
