// Which elements are sent in which bucket, and the exchange of buckets.
#include "tensor/comm/parts.h"

namespace brine {

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

}  // namespace brine
