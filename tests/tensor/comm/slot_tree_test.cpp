// The sum over slots: its bits are those of the tree, whatever the number of ranks.
#include "tensor/comm/slot_tree.h"

#include <doctest/doctest.h>

#include "tensor/comm/parts.h"
#include "tests/messages.h"
#include "tests/tensor/comm/thread_ranks.h"
#include "tests/tensor/comm/tree_sums.h"

namespace brine::test {
namespace {

// Adds the slots of one rank as a trainer does: one buffer, which the next slot overwrites.
Tensor rank_sum(Communicator& ranks, const std::vector<std::vector<float>>& all) {
  const int64_t slots = int64_t(all.size()), n = int64_t(all[0].size());
  const SlotRange local = slots_of(slots, ranks.rank(), ranks.size());
  const Tensor buffer = Tensor::empty({n});
  SlotSum sum(slots, local);
  for (int64_t s = local.begin; s < local.end; ++s) {
    std::copy(all[size_t(s)].begin(), all[size_t(s)].end(), buffer.data<float>());
    sum.add(buffer);
  }
  sum.over_ranks(ranks, "gradients", buffer);
  return buffer;
}

TEST_CASE("slot tree: the sum has the bits of the tree for every number of slots and ranks") {
  for (const int64_t slots : {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 16, 33}) {
    const std::vector<std::vector<float>> all = gradients_of(slots, 37);
    const std::vector<float> expected = tree_sum(all, 0, size_t(slots));
    for (int ranks = 1; ranks <= std::min<int64_t>(slots, 9); ++ranks) {
      INFO("slots ", slots, " ranks ", ranks);
      std::vector<char> same(size_t(ranks), 0);
      on_ranks(ranks, [&](Communicator& c) {
        same[size_t(c.rank())] = same_bits(rank_sum(c, all), expected);
      });
      CHECK(std::count(same.begin(), same.end(), 1) == ranks);
    }
  }
}

TEST_CASE("slot tree: buffers that travel in several pieces, and ranks without an element") {
  for (const int64_t n : {int64_t(1), int64_t(16), int64_t(17), (int64_t(1) << 21) + 3}) {
    const std::vector<std::vector<float>> all = gradients_of(5, n);
    const std::vector<float> expected = tree_sum(all, 0, 5);
    on_ranks(3, [&](Communicator& c) {
      check(same_bits(rank_sum(c, all), expected), "rank ", c.rank(), " has another sum, n = ", n);
    });
  }
}

TEST_CASE("slot tree: one rank sends its subtrees to the others, then its sum to all of them") {
  const int64_t n = 160, slots = 8;
  const std::vector<std::vector<float>> all = gradients_of(slots, n);
  for (const int ranks : {2, 3, 4}) {
    on_ranks(ranks, [&](Communicator& c) {
      rank_sum(c, all);
      const int64_t local = elements_in_buckets(n, c.rank(), ranks);
      const auto trees = int64_t(subtrees_of(slots, slots_of(slots, c.rank(), ranks)).size());
      check(c.traffic().bytes == 4 * (trees * (n - local) + (ranks - 1) * local), "rank ", c.rank(),
            " sent ", c.traffic().bytes, " bytes");
    });
  }
}

TEST_CASE("slot tree: ranges cover all slots and elements") {
  for (const int64_t slots : {1, 5, 8, 13}) {
    for (int ranks = 1; ranks <= slots; ++ranks) {
      int64_t slot = 0, element = 0;
      for (int r = 0; r < ranks; ++r) {
        CHECK(slots_of(slots, r, ranks).begin == slot);
        CHECK(slots_of(slots, r, ranks).size() > 0);
        for (const SlotRange node : subtrees_of(slots, slots_of(slots, r, ranks))) {
          CHECK(node.begin == slot);
          slot = node.end;
        }
        CHECK(elements_of(100, r, ranks).begin == element);
        element = elements_of(100, r, ranks).end;
      }
      CHECK(slot == slots);
      CHECK(element == 100);
    }
  }
}

TEST_CASE("communicator: the tensor of the first rank on all") {
  for (const int64_t n : {int64_t(1), int64_t(40), (int64_t(1) << 21) + 3}) {
    for (const int ranks : {1, 2, 3, 5}) {
      if (n > 100 && ranks == 5) continue;
      const std::vector<std::vector<float>> all = gradients_of(ranks, n);
      on_ranks(ranks, [&](Communicator& c) {
        const Tensor t = Tensor::from(all[size_t(c.rank())], {n});
        c.broadcast("values", t);
        check(same_bits(t, all[0]), "broadcast: rank ", c.rank(), " of ", ranks);
      });
    }
  }
}

TEST_CASE("communicator: tensors that are not flat, or where nothing moves them, are refused") {
  SelfCommunicator self;
  const Tensor square = Tensor::zeros({4, 4});
  CHECK(message([&] { self.broadcast("sum", square); }) ==
        "sum: a tensor [4, 4] with strides [4, 1] must be flat and contiguous");
  CHECK(message([&] { self.broadcast("sum", square.select(1, 0)); }) ==
        "sum: a tensor [4] with strides [4] must be flat and contiguous");
  CHECK(message([&] { self.broadcast("sum", Tensor::empty({4}, Dtype::f32, Device::meta)); }) ==
        "sum: self does not send memory of meta");
}

TEST_CASE("communicator: gather, broadcast and barrier") {
  for (const int ranks : {1, 2, 5}) {
    on_ranks(ranks, [&](Communicator& c) {
      const std::vector<std::string> all = c.gather("names", std::string(size_t(c.rank()), 'x'));
      for (int r = 0; r < ranks; ++r)
        check(all[size_t(r)] == std::string(size_t(r), 'x'), "rank ", r, ": ", all[size_t(r)]);
      double value = c.is_first() ? 0.25 : 0;
      if (ranks > 1) c.broadcast("value", &value, sizeof(value));
      check(value == 0.25, "rank ", c.rank(), " has ", value);
      c.barrier("end");
    });
  }
}

TEST_CASE("communicator: an expired limit names the operation and the rank that is missing") {
  std::string message;
  on_ranks(3, [&](Communicator& c) {
    c.set_limit(0.05);
    if (c.rank() == 2) return;
    try {
      c.gather("loss terms of step 7", "text");
    } catch (const RanksMissing& e) {
      if (c.is_first()) message = e.what();
    }
  });
  CHECK(message == "loss terms of step 7: no answer from rank 2");
}

}  // namespace
}  // namespace brine::test
