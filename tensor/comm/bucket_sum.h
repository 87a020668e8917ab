// The sum of a step's gradients over all slots and ranks, in buckets that travel as soon as they
// are complete, while the gradients of others are still computed.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "tensor/comm/slot_tree.h"

namespace brine {

// Its bits are those of SlotSum, whenever buckets are complete. All ranks make one, for buffers of
// one size, with communicators that post.
class BucketSum {
 public:
  // In the order of the tree: `gradients` [n], on the CPU, get those of this rank's last slot;
  // `rest` is what they meet.
  BucketSum(Communicator& ranks, std::string what, const Tensor& gradients, int64_t slots,
            SlotSum::Rest rest);
  ~BucketSum();
  BucketSum(const BucketSum&) = delete;
  BucketSum& operator=(const BucketSum&) = delete;

  int64_t buckets() const { return int64_t(all_.size()); }
  SlotRange range_of(int64_t bucket) const;
  // Nothing more is added to this bucket, on this rank. From now on it is not written to, and read
  // by nothing else, until finish().
  void complete(int64_t bucket);
  // Moves messages on, without waiting.
  void advance();
  // All buckets are complete. Returns when `gradients` are the sum; throws as exchange() does.
  void finish();

  // What this rank has handed over to be sent: all bytes, and those before the backward pass had
  // ended, which is finish() unless a number is given.
  void backward_ended(int64_t early) { early_ = early; }
  int64_t early_bytes() const { return early_; }
  int64_t bytes() const;

 private:
  struct Message {
    int rank;
    std::unique_ptr<Posted> posted;
  };
  enum class Stage : uint8_t { open, waits, parts, sum, done };
  struct Bucket {
    Stage stage = Stage::open;
    std::vector<Message> out, in;
    Tensor arrived;  // of the owner: the other ranks' sums, a row for each
  };
  // The order of the stages: complete buckets wait until their owner has room for the others'
  // parts, parts travel to it, and the sum to all.
  void start(int64_t bucket);
  void receive_parts(int64_t bucket);
  void send_parts(int64_t bucket);
  void add_parts(int64_t bucket);
  bool move_on(int64_t bucket);
  int64_t count_left();
  MissingRanks missing() const;
  Tensor part(const Tensor& buffer, int64_t bucket) const;

  Communicator& ranks_;
  std::string what_;
  Tensor gradients_;
  int64_t slots_ = 0;
  SlotSum::Rest rest_;
  std::vector<std::vector<SlotRange>> nodes_;  // of each rank
  int64_t foreign_ = 0;                        // nodes of the other ranks
  bool finishing_ = false;
  std::vector<Bucket> all_;
  std::deque<int64_t> for_room_;  // complete ones of this rank's
  std::vector<int64_t> moving_;   // that have been started and are not done
  int64_t open_ = 0;              // buckets of this rank's whose parts are arriving
  int64_t before_ = 0, early_ = -1;
};

}  // namespace brine
