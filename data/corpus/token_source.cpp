// Token sources: lists in memory, and concatenated sources.
#include "data/corpus/token_source.h"

#include "tensor/base/error.h"

namespace brine::data {
namespace {

void check_range(int64_t from, size_t count, int64_t size) {
  check(from >= 0 && from <= size && int64_t(count) <= size - from, "tokens: ", count, " from ",
        from, " on are not within the ", size, " that there are");
}

}  // namespace

std::vector<int32_t> TokenSource::slice(int64_t from, int64_t count) const {
  check_range(from, size_t(count), size());
  std::vector<int32_t> out(static_cast<size_t>(count));
  read(from, out);
  return out;
}

void TokenList::read(int64_t from, std::span<int32_t> out) const {
  check_range(from, out.size(), size());
  std::copy_n(tokens_.begin() + from, out.size(), out.begin());
}

JoinedTokens::JoinedTokens(std::vector<std::shared_ptr<const TokenSource>> parts)
    : parts_(std::move(parts)) {
  for (const auto& part : parts_) ends_.push_back(size() + part->size());
}

void JoinedTokens::read(int64_t from, std::span<int32_t> out) const {
  check_range(from, out.size(), size());
  read_parts(ends_, from, out,
             [&](size_t part, int64_t at, std::span<int32_t> to) { parts_[part]->read(at, to); });
}

}  // namespace brine::data
