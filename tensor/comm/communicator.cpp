// Collectives made of messages between two ranks, so that an expired limit can name who is missing.
#include "tensor/comm/communicator.h"

#include <unistd.h>

#include "tensor/comm/parts.h"
#include "tensor/comm/patience.h"

namespace brine {

SlotRange elements_of(int64_t n, int rank, int ranks) {
  constexpr int64_t kUnit = 16;  // elements of a line of cache
  const int64_t units = (n + kUnit - 1) / kUnit;
  return {std::min(n, rank * units / ranks * kUnit),
          std::min(n, (rank + 1) * units / ranks * kUnit)};
}

void Communicator::exchange(const std::string& what, const std::vector<Outgoing>& out,
                            const std::vector<Incoming>& in, double patience, Device where) {
  check(moves(where), what, ": ", name(), " does not send memory of ", where);
  for (const Outgoing& o : out) {
    traffic_.bytes += int64_t(o.size);
    ++traffic_.messages;
  }
  if (!out.empty() || !in.empty()) move({what, limit_ * patience, where}, out, in);
}

void Communicator::fail(const Wait& wait, const std::vector<int>& missing) {
  std::string names;
  for (const int rank : missing) names += (names.empty() ? "" : ", ") + std::to_string(rank);
  if (missing.empty())
    throw RanksMissing(join(wait.what, ": not done within ", wait.seconds, " seconds"));
  throw RanksMissing(join(wait.what, ": no answer from rank", missing.size() > 1 ? "s " : " ",
                          names, " within ", wait.seconds, " seconds"));
}

// Between every two ranks, so that each one can name the missing ranks.
void Communicator::barrier(const std::string& what, double patience) {
  const char token = 0;
  std::vector<char> tokens(size_t(size_), 0);
  std::vector<Incoming> in;
  std::vector<Outgoing> out;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    in.push_back({r, &tokens[size_t(r)], 1});
    out.push_back({r, &token, 1});
  }
  exchange(what, out, in, patience);
}

std::vector<std::string> Communicator::gather(const std::string& what, const std::string& local) {
  std::vector<std::string> all(static_cast<size_t>(size_));
  all[size_t(rank_)] = local;
  const uint64_t length = local.size();
  std::vector<uint64_t> lengths(static_cast<size_t>(size_));
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    out.push_back({r, &length, sizeof(length)});
    in.push_back({r, &lengths[size_t(r)], sizeof(length)});
  }
  exchange(what, out, in);
  out.clear();
  in.clear();
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    all[size_t(r)].resize(lengths[size_t(r)]);
    if (length > 0) out.push_back({r, local.data(), local.size()});
    if (lengths[size_t(r)] > 0) in.push_back({r, all[size_t(r)].data(), lengths[size_t(r)]});
  }
  exchange(what, out, in);
  return all;
}

void Communicator::broadcast(const std::string& what, void* bytes, size_t size, Device where) {
  if (!is_first()) return exchange(what, {}, {{0, bytes, size}}, 1, where);
  std::vector<Outgoing> out;
  for (int r = 1; r < size_; ++r) out.push_back({r, bytes, size});
  exchange(what, out, {}, 1, where);
}

void Communicator::refuse_other(const std::string& what, const Tensor& values) const {
  check(values.rank() == 1 && values.is_contiguous(), what, ": a tensor ", values.shape(),
        " with strides ", values.strides(), " must be flat and contiguous");
  check(moves(values.device()), what, ": ", name(), " does not send memory of ", values.device());
}

void Communicator::broadcast(const std::string& what, const Tensor& values) {
  refuse_other(what, values);
  if (size_ == 1 || values.numel() == 0) return;
  if (!is_first()) values.bump_version();
  broadcast(what, values.raw(), bytes_of(values), values.device());
}

void SelfCommunicator::abort(int status) { ::_exit(status); }

void SelfCommunicator::move(const Wait& wait, const std::vector<Outgoing>&,
                            const std::vector<Incoming>&) {
  throw Error(wait.what + ": there is one process, so no messages");
}

}  // namespace brine
