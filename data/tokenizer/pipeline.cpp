// From a text to its tokens: added tokens, normalization, added tokens again, pieces.
#include "data/tokenizer/pipeline.h"

#include <algorithm>

#include "data/io/utf8.h"
#include "tensor/base/error.h"

namespace brine::data {

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
  const int32_t largest = model.post_processor.largest_id();
  check_format(largest < vocab_size(), where, ": post_processor: id ", largest,
               " is outside the vocabulary of ", vocab_size());
  special_.resize(spelled_.size());
  for (const AddedToken& token : model.added) {
    special_[size_t(token.id)] = token.special;
    if (token.normalized)
      normalized_.add(token, model.normalizer.apply(token.content).text);
    else
      raw_.add(token, token.content);
  }
}

std::vector<int32_t> PipelineTokenizer::encode(std::string_view text) const {
  return run_of(text, false).ids;
}

Encoding PipelineTokenizer::encode_pair(std::string_view first,
                                        std::optional<std::string_view> second,
                                        int64_t max_tokens) const {
  check_format(shared_->no_template.empty(), shared_->no_template);
  const PostProcessor& post = shared_->post_processor;
  const size_t added = post.added(second.has_value());
  check(max_tokens >= int64_t(added), "tokenizer: max_tokens = ", max_tokens, ", but ", added,
        " tokens are added to ", second ? "a pair" : "a text");
  TokenRun a = run_of(first, true), b;
  if (second) b = run_of(*second, true);
  truncate_longest_first(a, second ? &b : nullptr, size_t(max_tokens) - added);
  if (post.trims_offsets()) {
    trim_offsets(a, first);
    if (second) trim_offsets(b, *second);
  }
  return post.apply(a, second ? &b : nullptr);
}

TokenRun PipelineTokenizer::run_of(std::string_view text, bool want_offsets) const {
  const size_t bad = find_invalid_utf8(text);
  check(bad == kValidUtf8, "tokenizer: the text is not UTF-8 at byte offset ", bad);
  TokenRun out;
  out.ids.reserve(text.size() / 3);
  std::unique_lock lock(cache_mutex_, std::try_to_lock);
  if (lock) {
    encode_with(text, cache_, out, want_offsets);
  } else {
    WordCache local_cache;  // another thread uses the shared one
    encode_with(text, local_cache, out, want_offsets);
  }
  return out;
}

void PipelineTokenizer::encode_with(std::string_view text, WordCache& cache, TokenRun& out,
                                    bool want_offsets) const {
  const Normalizer& normalizer = shared_->normalizer;
  // Without offsets and normalization the text itself is encoded, without a copy.
  const bool plain = normalizer.empty() && !want_offsets && normalized_.empty();
  for (size_t at = 0; at < text.size();) {
    const AddedTokenFinder::Found found =
        raw_.empty() ? AddedTokenFinder::Found{text.size(), text.size(), -1} : raw_.next(text, at);
    const std::string_view piece = text.substr(at, found.at - at);
    if (plain)
      encode_piece({piece, at == 0}, cache, out.ids, nullptr);
    else if (!piece.empty())
      encode_normalized(normalizer.apply(piece, want_offsets), at, cache, out, want_offsets);
    if (found.id >= 0) {
      out.ids.push_back(found.id);
      if (want_offsets) out.offsets.push_back({found.at, found.end});
    }
    at = found.end;
  }
}

// `base`: the offset in the whole text of the piece from which `text` was made.
void PipelineTokenizer::encode_normalized(const Normalized& text, size_t base, WordCache& cache,
                                          TokenRun& out, bool want_offsets) const {
  auto original = [&](size_t begin, size_t end) {
    const TextSpan span{text.origin[begin].begin, text.origin[end - 1].end};
    return TextSpan{base + span.begin, base + std::max(span.begin, span.end)};
  };
  std::vector<TextSpan> spans;
  const std::string_view all = text.text;
  for (size_t at = 0; at < all.size();) {
    const AddedTokenFinder::Found found = normalized_.empty()
                                              ? AddedTokenFinder::Found{all.size(), all.size(), -1}
                                              : normalized_.next(all, at);
    spans.clear();
    if (found.at > at)
      encode_piece({all.substr(at, found.at - at), base + at == 0}, cache, out.ids,
                   want_offsets ? &spans : nullptr);
    for (const TextSpan& span : spans)
      out.offsets.push_back(original(at + span.begin, at + span.end));
    if (found.id >= 0) {
      out.ids.push_back(found.id);
      if (want_offsets) out.offsets.push_back(original(found.at, found.end));
    }
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

bool PipelineTokenizer::is_special(int32_t id) const { return special_[size_t(id)]; }

}  // namespace brine::data
