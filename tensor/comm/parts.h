// Flat buffers that travel in parts: the elements of each rank, a piece of them in a round.
#pragma once

#include "tensor/comm/communicator.h"

namespace brine {

constexpr int64_t kPiece = int64_t(1) << 20;  // elements of one owner that travel at a time

// The part of a rank's elements that travels in one round; may be empty.
SlotRange part_of(SlotRange elements, int64_t round);
// Rounds until all elements of a buffer of n have travelled.
int64_t rounds_of(int64_t n, int ranks);

inline Tensor slice_of(const Tensor& buffer, SlotRange r) {
  return buffer.slice(0, r.begin, r.size());
}
inline size_t bytes_of(const Tensor& t) { return size_t(t.numel()) * item_size(t.dtype()); }

// Sends this rank's part of a flat buffer to all others and receives theirs.
void gather_round(Communicator& ranks, const std::string& what, const Tensor& buffer,
                  int64_t round);

}  // namespace brine
