// The sum of the gradients of a step's micro-batches (slots) in one fixed binary tree, so that its
// bits do not depend on how many ranks computed them.
#pragma once

#include <vector>

#include "tensor/comm/communicator.h"
#include "tensor/tensor.h"

namespace brine {

// A node of the tree over the slots [0, n) is a range of slots. The left child of a range has the
// largest power of two of slots that is smaller than the range.

// The slots of one rank: contiguous, in the order of the ranks.
SlotRange slots_of(int64_t slots, int rank, int ranks);
// The first slot of a range's right child; a range of one slot has no children.
int64_t middle_of(SlotRange range);
// The largest nodes that are inside a range, in order; at most about 2 log2(slots).
std::vector<SlotRange> subtrees_of(int64_t slots, SlotRange range);

// Adds up the slots of one rank as they come, with one copy of the buffer for each pending node.
class SlotSum {
 public:
  SlotSum(int64_t slots, SlotRange range) : slots_(slots), range_(range), next_(range.begin) {}

  // `gradients` [n] are those of the next slot. They may be overwritten afterwards, except after
  // the last slot, which leaves the last node's sum in them.
  void add(const Tensor& gradients);
  // Replaces `gradients` by the sum over all slots of all ranks. Call it after the last slot.
  void over_ranks(Communicator& ranks, const std::string& what, const Tensor& gradients);

 private:
  // The next pending node is the left sibling of `node`, which becomes their parent.
  bool joins_left(SlotRange& node) const;

  int64_t slots_;
  SlotRange range_;
  int64_t next_;
  struct Sum {
    SlotRange node;
    Tensor values;
  };
  std::vector<Sum> pending_;
};

// The sum of subtrees of all ranks: `local` are those of subtrees_of(slots, slots_of(...)) of this
// rank, [n] in memory that `ranks` moves, which are overwritten; the sum is stored in the last of
// them.
void sum_subtrees(Communicator& ranks, const std::string& what, int64_t slots,
                  const std::vector<Tensor>& local);

}  // namespace brine
