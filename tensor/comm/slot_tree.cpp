// Inner nodes are added where their slots were computed, outer ones by the owner of each element.
#include "tensor/comm/slot_tree.h"

#include <bit>
#include <map>
#include <utility>

#include "tensor/comm/parts.h"
#include "tensor/kernels/dense.h"

namespace brine {
namespace {

// The parent of a node, by descent from the root.
SlotRange parent_of(int64_t slots, SlotRange node) {
  SlotRange at{0, slots};
  for (;;) {
    const int64_t middle = middle_of(at);
    const SlotRange child =
        node.begin < middle ? SlotRange{at.begin, middle} : SlotRange{middle, at.end};
    if (child == node) return at;
    at = child;
  }
}

void find_subtrees(SlotRange node, SlotRange range, std::vector<SlotRange>& out) {
  if (node.end <= range.begin || node.begin >= range.end) return;
  if (node.begin >= range.begin && node.end <= range.end) {
    out.push_back(node);
    return;
  }
  const int64_t middle = middle_of(node);
  find_subtrees({node.begin, middle}, range, out);
  find_subtrees({middle, node.end}, range, out);
}

void add_into(const Tensor& y, const Tensor& x) { BRINE_CALL(y, accumulate, y, x); }

// The sum of all slots of `node` from those of subtrees that cover it, by their first slots; the
// values of the first subtree become the sum.
using SubtreeSums = std::map<int64_t, std::pair<SlotRange, Tensor>>;

Tensor sum_of_node(SlotRange node, const SubtreeSums& given) {
  const auto found = given.find(node.begin);
  if (found != given.end() && found->second.first == node) return found->second.second;
  const int64_t middle = middle_of(node);
  const Tensor left = sum_of_node({node.begin, middle}, given);
  add_into(left, sum_of_node({middle, node.end}, given));
  return left;
}

}  // namespace

SlotRange slots_of(int64_t slots, int rank, int ranks) {
  return {rank * slots / ranks, (rank + 1) * slots / ranks};
}

int64_t middle_of(SlotRange range) {
  return range.begin + int64_t(std::bit_floor(uint64_t(range.size() - 1)));
}

std::vector<SlotRange> subtrees_of(int64_t slots, SlotRange range) {
  std::vector<SlotRange> out;
  find_subtrees({0, slots}, range, out);
  return out;
}

bool SlotSum::joins_left(SlotRange& node) const {
  if (node.size() >= slots_) return false;
  const SlotRange parent = parent_of(slots_, node);
  const bool is_left = parent.begin == node.begin;
  if (is_left || parent.begin < range_.begin || parent.end > range_.end) return false;
  node = parent;
  return true;
}

void SlotSum::add(const Tensor& gradients) {
  SlotRange node{next_, next_ + 1};
  const bool last = ++next_ == range_.end;
  Tensor values = gradients;
  while (joins_left(node)) {
    Sum left = std::move(pending_.back());
    pending_.pop_back();
    // The same sum in either buffer; the last one is expected in `gradients`.
    const Tensor target = last ? gradients : left.values;
    add_into(target, last ? left.values : values);
    values = target;
  }
  if (last) return;
  pending_.push_back({node, values.shares_memory(gradients) ? values.clone() : values});
}

void SlotSum::over_ranks(Communicator& ranks, const std::string& what, const Tensor& gradients) {
  if (ranks.size() == 1) return;
  // Without a way from device to device the sum is made on the CPU.
  const Device where = ranks.moves(gradients.device()) ? gradients.device() : Device{};
  std::vector<Tensor> sums;
  for (const Sum& s : pending_) sums.push_back(s.values.to(where));
  sums.push_back(gradients.to(where));
  sum_subtrees(ranks, what, slots_, sums);
  if (!sums.back().shares_memory(gradients)) assign(gradients, sums.back());
  pending_.clear();
}

void sum_subtrees(Communicator& ranks, const std::string& what, int64_t slots,
                  const std::vector<Tensor>& local) {
  const int size = ranks.size(), me = ranks.rank();
  const Tensor& result = local.back();
  const int64_t n = result.numel();
  std::vector<std::vector<SlotRange>> nodes;  // of each rank
  for (int r = 0; r < size; ++r) nodes.push_back(subtrees_of(slots, slots_of(slots, r, size)));
  check(nodes[size_t(me)].size() == local.size(), what, ": ", local.size(), " sums for ",
        nodes[size_t(me)].size(), " nodes");
  size_t foreign = 0;
  for (int r = 0; r < size; ++r) foreign += r == me ? 0 : nodes[size_t(r)].size();
  const int64_t buckets = size == 1 ? 0 : buckets_of(n, size);
  int64_t max_size = 0;
  for (int64_t b = me; b < buckets; b += size)
    max_size = std::max(max_size, bucket_of(n, b, buckets).size());
  const Tensor arrived =
      Tensor::empty({int64_t(foreign), max_size}, result.dtype(), result.device());
  for (int64_t first = 0; first < buckets; first += size) {
    const auto of_owner = [&](int r) { return bucket_of(n, first + r, buckets); };
    const SlotRange local_bucket = of_owner(me);
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    SubtreeSums given;
    int64_t row = 0;
    for (int r = 0; r < size; ++r) {
      const SlotRange remote_bucket = of_owner(r);
      for (size_t i = 0; r != me && remote_bucket.size() > 0 && i < local.size(); ++i) {
        const Tensor part = slice_of(local[i], remote_bucket);
        out.push_back({r, part.raw(), bytes_of(part)});
      }
      for (size_t i = 0; local_bucket.size() > 0 && i < nodes[size_t(r)].size(); ++i) {
        const SlotRange node = nodes[size_t(r)][i];
        Tensor values;
        if (r == me) {
          values = slice_of(local[i], local_bucket);
        } else {
          values = arrived.select(0, row++).slice(0, 0, local_bucket.size());
          in.push_back({r, values.raw(), bytes_of(values)});
        }
        given[node.begin] = {node, values};
      }
    }
    ranks.exchange(what, out, in, 1, result.device());
    if (local_bucket.size() > 0) {
      const Tensor sum = sum_of_node({0, slots}, given);
      const Tensor target = slice_of(result, local_bucket);
      if (sum.raw() != target.raw()) assign(target, sum);
    }
    exchange_parts(ranks, what, result, of_owner);
  }
}

}  // namespace brine
