// A bucket's parts travel to its owner, which adds them in the tree's order and sends the sum to
// all.
#include "tensor/comm/bucket_sum.h"

#include <algorithm>
#include <utility>

#include "tensor/comm/parts.h"

namespace brine {
namespace {

constexpr int64_t kOpen = 4;  // buckets for which an owner has room at a time

int part_number(int64_t bucket) { return int(2 * bucket); }
int sum_number(int64_t bucket) { return int(2 * bucket + 1); }

template <class Message>
bool all_done(std::vector<Message>& messages) {
  std::erase_if(messages, [](Message& m) { return m.posted->is_done(); });
  return messages.empty();
}

}  // namespace

BucketSum::BucketSum(Communicator& ranks, std::string what, const Tensor& gradients, int64_t slots,
                     SlotSum::Rest rest)
    : ranks_(ranks),
      what_(std::move(what)),
      gradients_(gradients),
      slots_(slots),
      rest_(std::move(rest)),
      all_(size_t(buckets_of(gradients.numel(), ranks.size()))),
      before_(ranks.traffic().bytes) {
  for (int r = 0; r < ranks.size(); ++r) {
    nodes_.push_back(subtrees_of(slots, slots_of(slots, r, ranks.size())));
    foreign_ += r == ranks.rank() ? 0 : int64_t(nodes_.back().size());
  }
  check(nodes_[size_t(ranks.rank())].size() == rest_.others.size() + 1, what_, ": ",
        rest_.others.size() + 1, " sums for ", nodes_[size_t(ranks.rank())].size(), " nodes");
}

// After an error memory that is still being sent or received must remain until the process ends.
BucketSum::~BucketSum() {
  if (moving_.empty()) return;
  static auto* const kept = new std::vector<std::pair<std::vector<Bucket>, std::vector<Tensor>>>;
  std::vector<Tensor> tensors = rest_.others;
  tensors.push_back(gradients_);
  kept->emplace_back(std::move(all_), std::move(tensors));
}

SlotRange BucketSum::range_of(int64_t bucket) const {
  return bucket_of(gradients_.numel(), bucket, buckets());
}

Tensor BucketSum::part(const Tensor& buffer, int64_t bucket) const {
  return slice_of(buffer, range_of(bucket));
}

void BucketSum::complete(int64_t bucket) {
  Bucket& b = all_[size_t(bucket)];
  check(b.stage == Stage::open, what_, ": bucket ", bucket, " is complete twice");
  b.stage = Stage::waits;
  for (const Tensor& left : rest_.lefts) add_into(part(gradients_, bucket), part(left, bucket));
  if (range_of(bucket).size() == 0) {
    b.stage = Stage::done;
  } else {
    start(bucket);
  }
}

void BucketSum::start(int64_t bucket) {
  if (int(bucket % ranks_.size()) != ranks_.rank()) return send_parts(bucket);
  for_room_.push_back(bucket);
  if (open_ < kOpen) receive_parts(bucket);
}

void BucketSum::send_parts(int64_t bucket) {
  Bucket& b = all_[size_t(bucket)];
  const int owner = int(bucket % ranks_.size());
  moving_.push_back(bucket);
  b.stage = Stage::parts;
  auto send = [&](const Tensor& sum) {
    const Tensor values = part(sum, bucket);
    b.out.push_back({owner, ranks_.post(what_, Outgoing{owner, values.raw(), bytes_of(values)},
                                        part_number(bucket))});
  };
  for (const Tensor& sum : rest_.others) send(sum);
  send(gradients_);
}

void BucketSum::receive_parts(int64_t bucket) {
  Bucket& b = all_[size_t(bucket)];
  for_room_.pop_front();
  ++open_;
  moving_.push_back(bucket);
  b.stage = Stage::parts;
  const int me = ranks_.rank();
  int64_t row = 0;
  b.arrived = Tensor::empty({foreign_, range_of(bucket).size()}, gradients_.dtype());
  for (int r = 0; r < ranks_.size(); ++r) {
    for (size_t i = 0; r != me && i < nodes_[size_t(r)].size(); ++i) {
      const Tensor values = b.arrived.select(0, row++);
      b.in.push_back({r, ranks_.post(what_, Incoming{r, values.raw(), bytes_of(values)},
                                     part_number(bucket))});
    }
  }
}

void BucketSum::add_parts(int64_t bucket) {
  Bucket& b = all_[size_t(bucket)];
  SubtreeSums given;
  int64_t row = 0;
  for (int r = 0; r < ranks_.size(); ++r) {
    const std::vector<SlotRange>& nodes = nodes_[size_t(r)];
    for (size_t i = 0; i < nodes.size(); ++i) {
      const bool mine = r == ranks_.rank(), last = i + 1 == nodes.size();
      const Tensor values = !mine  ? b.arrived.select(0, row++)
                            : last ? part(gradients_, bucket)
                                   : part(rest_.others[i], bucket);
      given[nodes[i].begin] = {nodes[i], values};
    }
  }
  const Tensor sum = sum_of_node({0, slots_}, given), target = part(gradients_, bucket);
  if (sum.raw() != target.raw()) assign(target, sum);
  b.arrived = Tensor();
  --open_;
  b.stage = Stage::sum;
  for (int r = 0; r < ranks_.size(); ++r) {
    if (r == ranks_.rank()) continue;
    b.out.push_back(
        {r, ranks_.post(what_, Outgoing{r, target.raw(), bytes_of(target)}, sum_number(bucket))});
  }
}

// True when it is done.
bool BucketSum::move_on(int64_t bucket) {
  Bucket& b = all_[size_t(bucket)];
  const int owner = int(bucket % ranks_.size());
  const bool is_done = all_done(b.out) & all_done(b.in);
  if (!is_done) return false;
  if (b.stage == Stage::sum) {
    b.stage = Stage::done;
  } else if (owner == ranks_.rank()) {
    add_parts(bucket);
  } else {
    // The part has left its memory, where the sum may now arrive.
    const Tensor target = part(gradients_, bucket);
    b.stage = Stage::sum;
    b.in.push_back({owner, ranks_.post(what_, Incoming{owner, target.raw(), bytes_of(target)},
                                       sum_number(bucket))});
  }
  return b.stage == Stage::done;
}

void BucketSum::advance() {
  std::erase_if(moving_, [this](int64_t bucket) { return move_on(bucket); });
  while (open_ < kOpen && !for_room_.empty()) receive_parts(for_room_.front());
}

// The messages that have not arrived or left, those of later stages among them: a number that only
// falls, by which a wait knows that something moves.
int64_t BucketSum::count_left() {
  advance();
  const int64_t others = ranks_.size() - 1;
  int64_t left = int64_t(for_room_.size()) * (foreign_ + others);
  for (const int64_t b : moving_) {
    const Bucket& bucket = all_[size_t(b)];
    left += int64_t(bucket.out.size() + bucket.in.size());
    if (bucket.stage == Stage::parts) left += int(b % ranks_.size()) == ranks_.rank() ? others : 1;
  }
  return left;
}

// Those whose parts have not come. Only without any those that do not take parts, which an owner
// does not while it waits itself, and without these those that do not send sums, for which an owner
// needs all parts.
MissingRanks BucketSum::missing() const {
  std::vector<int> parts, takers, sums;
  for (const int64_t b : moving_) {
    const Bucket& bucket = all_[size_t(b)];
    const bool travels = bucket.stage == Stage::parts;
    for (const Message& m : bucket.in) (travels ? parts : sums).push_back(m.rank);
    for (const Message& m : bucket.out) (travels ? takers : sums).push_back(m.rank);
  }
  MissingRanks out{.ranks = !parts.empty()    ? parts
                            : !takers.empty() ? takers
                                              : sums,
                   .may_wait = parts.empty()};
  std::sort(out.ranks.begin(), out.ranks.end());
  out.ranks.erase(std::unique(out.ranks.begin(), out.ranks.end()), out.ranks.end());
  return out;
}

void BucketSum::finish() {
  check(!finishing_, what_, ": finished twice");
  finishing_ = true;
  if (early_ < 0) early_ = bytes();
  for (int64_t b = 0; b < buckets(); ++b) {
    if (all_[size_t(b)].stage == Stage::open) complete(b);
  }
  ranks_.await(
      what_, [this] { return count_left(); }, [this] { return missing(); });
  gradients_.bump_version();
}

int64_t BucketSum::bytes() const { return ranks_.traffic().bytes - before_; }

}  // namespace brine
