// Flat buffers that are sent in parts: the elements of each rank, a piece of them in a round.
#pragma once

#include <functional>

#include "tensor/comm/communicator.h"

namespace brine {

constexpr int64_t kPiece = int64_t(1) << 20;  // elements of one owner that are sent at a time

// The parts in which ranks add up a flat buffer of n: contiguous and of one size but for rounding,
// so that neighbours in the buffer have different owners. Bucket b is rank b % ranks' to add up.
int64_t buckets_of(int64_t n, int ranks);
SlotRange bucket_of(int64_t n, int64_t bucket, int64_t buckets);

inline Tensor slice_of(const Tensor& buffer, SlotRange r) {
  return buffer.slice(0, r.begin, r.size());
}
inline size_t bytes_of(const Tensor& t) { return size_t(t.numel()) * item_size(t.dtype()); }

// Sends this rank's part of a flat buffer to all others and receives theirs.
void exchange_parts(Communicator& ranks, const std::string& what, const Tensor& buffer,
                    const std::function<SlotRange(int)>& part_of_rank);
}  // namespace brine
