// From a text to its tokens: added tokens, normalization, added tokens again, pieces.
#include "data/tokenizer/pipeline.h"

#include <algorithm>
#include <cstring>

#include "data/io/utf8.h"
#include "data/unicode/unicode.h"
#include "tensor/base/error.h"

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

void PipelineTokenizer::build(const TokenizerModel& model, const std::string& where) {
  shared_ = &model;
  spelled_ = model.tokens;
  const size_t id_limit = 2 * (model.tokens.size() + model.added.size()) + 65536;
  for (const AddedToken& token : model.added) {
    check_format(!token.content.empty(), where, ": added token ", token.id, " is empty");
    check_format(token.id >= 0 && size_t(token.id) < id_limit, where, ": added token '",
                 token.content, "' has the id ", token.id, ", wanted 0 to ", id_limit - 1);
    if (size_t(token.id) >= spelled_.size()) spelled_.resize(size_t(token.id) + 1);
    std::string& name = spelled_[size_t(token.id)];
    check_format(name.empty() || name == token.content, where, ": id ", token.id,
                 " belongs to both '", name, "' and '", token.content, "'");
    name = token.content;
  }
  ids_.reserve(spelled_.size());
  for (size_t id = 0; id < spelled_.size(); ++id) {
    const std::string& name = spelled_[id];
    longest_ = std::max(longest_, name.size());
    if (name.empty()) continue;
    auto [entry, is_new] = ids_.emplace(name, int32_t(id));
    check_format(is_new, where, ": token '", name, "' has both ids ", entry->second, " and ", id);
  }
  // A character has at most as many bytes in a text as it and its accents separately.
  constexpr size_t kNormalized = 4;
  if (!model.normalizer.empty()) longest_ *= kNormalized;
  for (const auto* ids : {&model.around.front, &model.around.back})
    for (int32_t id : *ids)
      check_format(id < vocab_size(), where, ": post_processor: id ", id,
                   " is outside the vocabulary of ", vocab_size());
  special_.resize(spelled_.size());
  for (const AddedToken& token : model.added) {
    special_[size_t(token.id)] = token.special;
    if (token.normalized)
      normalized_.add(token, model.normalizer.apply(token.content));
    else
      raw_.add(token, token.content);
  }
  raw_.finish();
  normalized_.finish();
}

std::vector<int32_t> PipelineTokenizer::encode(std::string_view text) const {
  const size_t bad = find_invalid_utf8(text);
  check(bad == kValidUtf8, "tokenizer: the text is not UTF-8 at byte offset ", bad);
  std::vector<int32_t> out;
  out.reserve(text.size() / 3);
  std::unique_lock lock(cache_mutex_, std::try_to_lock);
  if (lock) {
    encode_with(text, cache_, out);
  } else {
    WordCache local_cache;  // another thread uses the shared one
    encode_with(text, local_cache, out);
  }
  return out;
}

const TokensAround& PipelineTokenizer::around() const {
  check_format(shared_->no_template.empty(), shared_->no_template);
  return shared_->around;
}

void PipelineTokenizer::encode_with(std::string_view text, WordCache& cache,
                                    std::vector<int32_t>& out) const {
  const Normalizer& normalizer = shared_->normalizer;
  for (size_t at = 0; at < text.size();) {
    const AddedTokenFinder::Found found = raw_.next(text, at);
    const std::string_view piece = text.substr(at, found.at - at);
    if (normalizer.empty())
      encode_normalized({piece, at == 0}, cache, out);
    else if (!piece.empty())
      encode_normalized({normalizer.apply(piece), at == 0}, cache, out);
    if (found.id >= 0) out.push_back(found.id);
    at = found.end;
  }
}

void PipelineTokenizer::encode_normalized(const Piece& piece, WordCache& cache,
                                          std::vector<int32_t>& out) const {
  for (size_t at = 0; at < piece.text.size();) {
    const AddedTokenFinder::Found found = normalized_.next(piece.text, at);
    if (found.at > at)
      encode_piece({piece.text.substr(at, found.at - at), piece.first && at == 0}, cache, out);
    if (found.id >= 0) out.push_back(found.id);
    at = found.end;
  }
}

std::optional<int32_t> PipelineTokenizer::id_of(std::string_view token) const {
  auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const std::string& PipelineTokenizer::token_of(int32_t id) const {
  check(id >= 0 && id < vocab_size(), "tokenizer: id ", id, " is outside the vocabulary of ",
        vocab_size());
  check(!spelled_[size_t(id)].empty(), "tokenizer: no token has the id ", id);
  return spelled_[size_t(id)];
}

std::string PipelineTokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string out;
  bool first = true;
  for (int32_t id : ids) {
    token_of(id);  // throws for an id without a token
    if (skip_special && special_[size_t(id)]) continue;
    out += decoded(id, first);
    first = false;
  }
  return out;
}

}  // namespace brine::data
