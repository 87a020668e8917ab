// Which elements are sent in which round, and the round of an all-gather.
#include "tensor/comm/parts.h"

namespace brine {

SlotRange part_of(SlotRange elements, int64_t round) {
  const int64_t begin = std::min(elements.end, elements.begin + round * kPiece);
  return {begin, std::min(elements.end, begin + kPiece)};
}

int64_t rounds_of(int64_t n, int ranks) {
  if (ranks == 1) return 0;
  int64_t max_size = 0;
  for (int r = 0; r < ranks; ++r) max_size = std::max(max_size, elements_of(n, r, ranks).size());
  return (max_size + kPiece - 1) / kPiece;
}

int64_t buckets_of(int64_t n, int ranks) {
  const int64_t pieces = (n + kPiece - 1) / kPiece;
  return ranks * std::max<int64_t>(1, (pieces + ranks - 1) / ranks);
}

SlotRange bucket_of(int64_t n, int64_t bucket, int64_t buckets) {
  return elements_of(n, int(bucket), int(buckets));
}

void exchange_parts(Communicator& ranks, const std::string& what, const Tensor& buffer,
                    const std::function<SlotRange(int)>& part_of_rank) {
  const int size = ranks.size(), me = ranks.rank();
  auto part = [&](int r) { return slice_of(buffer, part_of_rank(r)); };
  const Tensor local = part(me);
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
  for (int r = 0; r < size; ++r) {
    if (r == me) continue;
    if (local.numel() > 0) out.push_back({r, local.raw(), bytes_of(local)});
    if (const Tensor remote = part(r); remote.numel() > 0)
      in.push_back({r, remote.raw(), bytes_of(remote)});
  }
  buffer.bump_version();
  ranks.exchange(what, out, in, 1, buffer.device());
}

void gather_round(Communicator& ranks, const std::string& what, const Tensor& buffer,
                  int64_t round) {
  exchange_parts(ranks, what, buffer, [&](int r) {
    return part_of(elements_of(buffer.numel(), r, ranks.size()), round);
  });
}

}  // namespace brine
