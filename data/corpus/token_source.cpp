// Token sources: lists in memory, and concatenated sources.
#include "data/corpus/token_source.h"

#include <algorithm>

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
  auto part = size_t(std::upper_bound(ends_.begin(), ends_.end(), from) - ends_.begin());
  while (!out.empty()) {
    const int64_t begin = part == 0 ? 0 : ends_[part - 1];
    const auto count = size_t(std::min(int64_t(out.size()), ends_[part] - from));
    parts_[part]->read(from - begin, out.first(count));
    out = out.subspan(count);
    from += int64_t(count);
    ++part;
  }
}

}  // namespace brine::data
