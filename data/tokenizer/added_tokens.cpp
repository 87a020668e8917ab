// The search for added tokens.
#include "data/tokenizer/added_tokens.h"

#include <algorithm>
#include <cstring>

#include "data/unicode/unicode.h"

namespace brine::data {
namespace {

size_t spaces_before(std::string_view text, size_t at, size_t limit) {
  while (at > limit) {
    size_t start = at - 1;
    while (start > limit && (uint8_t(text[start]) & 0xc0) == 0x80) --start;
    size_t next = start;
    if (char_class(next_char(text, next)) != CharClass::kSpace) break;
    at = start;
  }
  return at;
}

size_t spaces_after(std::string_view text, size_t at) {
  while (at < text.size()) {
    size_t next = at;
    if (char_class(next_char(text, next)) != CharClass::kSpace) break;
    at = next;
  }
  return at;
}

}  // namespace

void AddedTokenFinder::add(const AddedToken& token, std::string content) {
  if (content.empty()) return;  // nothing is left after normalization
  patterns_.push_back({std::move(content), token.id, token.lstrip, token.rstrip});
}

void AddedTokenFinder::finish() {
  if (patterns_.empty()) return;
  std::stable_sort(patterns_.begin(), patterns_.end(), [](const Pattern& a, const Pattern& b) {
    return a.content.size() > b.content.size();
  });
  for (size_t i = 0; i < patterns_.size(); ++i)
    by_first_byte_[uint8_t(patterns_[i].content[0])].push_back(uint32_t(i));
  const char first = patterns_[0].content[0];
  const bool one = by_first_byte_[uint8_t(first)].size() == patterns_.size();
  only_byte_ = one ? int(uint8_t(first)) : -1;
}

AddedTokenFinder::Found AddedTokenFinder::next(std::string_view text, size_t from) const {
  if (patterns_.empty()) return {text.size(), text.size(), -1};
  for (size_t at = from; at < text.size(); ++at) {
    if (only_byte_ >= 0) {
      const void* found = std::memchr(text.data() + at, only_byte_, text.size() - at);
      if (!found) break;
      at = size_t(static_cast<const char*>(found) - text.data());
    }
    for (uint32_t i : by_first_byte_[uint8_t(text[at])]) {
      const Pattern& pattern = patterns_[i];
      if (!text.substr(at).starts_with(pattern.content)) continue;
      const size_t end = at + pattern.content.size();
      return {pattern.lstrip ? spaces_before(text, at, from) : at,
              pattern.rstrip ? spaces_after(text, end) : end, pattern.id};
    }
  }
  return {text.size(), text.size(), -1};
}

}  // namespace brine::data
