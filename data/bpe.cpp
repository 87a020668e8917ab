// Byte-level BPE: building the tables, encoding and decoding.
#include "data/bpe.h"

#include <algorithm>

#include "data/byte_alphabet.h"
#include "data/pretokenize.h"
#include "data/unicode.h"
#include "tensor/error.h"

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

void BpeTokenizer::Finder::add(const AddedToken& token) {
  auto& list = by_byte[uint8_t(token.content[0])];
  list.push_back(&token);
  std::stable_sort(list.begin(), list.end(), [](const AddedToken* a, const AddedToken* b) {
    return a->content.size() > b->content.size();
  });
  any = true;
}

BpeTokenizer::Found BpeTokenizer::Finder::next(std::string_view text, size_t from) const {
  for (size_t at = from; at < text.size(); ++at) {
    for (const AddedToken* token : by_byte[uint8_t(text[at])]) {
      if (!text.substr(at).starts_with(token->content)) continue;
      size_t end = at + token->content.size();
      return {token->lstrip ? spaces_before(text, at, from) : at,
              token->rstrip ? spaces_after(text, end) : end, token->id};
    }
  }
  return {text.size(), text.size(), -1};
}

BpeTokenizer::BpeTokenizer(BpeModel model, const std::string& where) : model_(std::move(model)) {
  spelled_ = model_.tokens;
  const size_t most = 2 * (model_.tokens.size() + model_.added.size()) + 65536;
  for (const AddedToken& token : model_.added) {
    check(!token.content.empty(), where, ": added token ", token.id, " is empty");
    check(token.id >= 0 && size_t(token.id) < most, where, ": added token '", token.content,
          "' has the id ", token.id, ", wanted 0 to ", most - 1);
    if (size_t(token.id) >= spelled_.size()) spelled_.resize(size_t(token.id) + 1);
    std::string& name = spelled_[size_t(token.id)];
    check(name.empty() || name == token.content, where, ": id ", token.id, " belongs to both '",
          name, "' and '", token.content, "'");
    name = token.content;
  }
  bytes_.resize(spelled_.size());
  ids_.reserve(spelled_.size());
  for (size_t id = 0; id < spelled_.size(); ++id) {
    const std::string& name = spelled_[id];
    if (name.empty()) continue;
    auto [there, is_new] = ids_.emplace(name, int32_t(id));
    check(is_new, where, ": token '", name, "' has both ids ", there->second, " and ", id);
    bytes_[id] = unspell_bytes(name).value_or(name);
  }
  check_bytes(where);
  check_merges(where);
  for (const AddedToken& token : model_.added) finders_[token.normalized ? 1 : 0].add(token);
}

void BpeTokenizer::check_bytes(const std::string& where) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string name = spell_bytes(std::string(1, char(byte)));
    auto id = ids_.find(name);
    check(id != ids_.end(), where, ": token '", name, "' of byte ", byte,
          " is missing from the vocabulary");
    byte_ids_[byte] = id->second;
  }
}

void BpeTokenizer::check_merges(const std::string& where) {
  merges_.reset(model_.merges.size());
  for (size_t rank = 0; rank < model_.merges.size(); ++rank) {
    auto [left, right] = model_.merges[rank];
    const auto size = int64_t(spelled_.size());
    check(left >= 0 && left < size && right >= 0 && right < size, where, ": merge ", rank,
          " is of ids outside the vocabulary");
    const std::string whole = spelled_[size_t(left)] + spelled_[size_t(right)];
    auto id = ids_.find(whole);
    check(id != ids_.end(), where, ": merge ", rank, " makes '", whole,
          "', which is missing from the vocabulary");
    merges_.set(left, right, {uint32_t(rank), id->second});
  }
}

std::vector<int32_t> BpeTokenizer::encode(std::string_view text) const {
  const size_t bad = find_invalid_utf8(text);
  check(bad == kValidUtf8, "tokenizer: the text is not UTF-8 at byte offset ", bad);
  std::vector<int32_t> out;
  out.reserve(text.size() / 3);
  std::unique_lock lock(cache_mutex_, std::try_to_lock);
  if (lock) {
    encode_pass(text, 0, cache_, out);
  } else {
    WordCache own;  // another thread has the shared one
    encode_pass(text, 0, own, out);
  }
  return out;
}

// Cuts the text at the added tokens of this pass and hands the pieces between to the next.
void BpeTokenizer::encode_pass(std::string_view text, int pass, WordCache& cache,
                               std::vector<int32_t>& out) const {
  if (pass == 2) return encode_plain(text, cache, out);
  if (!finders_[pass].any) return encode_pass(text, pass + 1, cache, out);
  for (size_t at = 0; at < text.size();) {
    Found found = finders_[pass].next(text, at);
    encode_pass(text.substr(at, found.at - at), pass + 1, cache, out);
    if (found.id >= 0) out.push_back(found.id);
    at = found.end;
  }
}

void BpeTokenizer::encode_plain(std::string_view text, WordCache& cache,
                                std::vector<int32_t>& out) const {
  std::string prefixed;
  if (model_.add_prefix_space && !text.empty() && text[0] != ' ') {
    prefixed = " ";
    prefixed += text;
    text = prefixed;
  }
  std::vector<int32_t> scratch;
  for (size_t at = 0, end = 0; at < text.size(); at = end) {
    end = gpt2_word_end(text, at);
    if (end - at == 1) {
      out.push_back(byte_ids_[uint8_t(text[at])]);
      continue;
    }
    const std::string_view word = text.substr(at, end - at);
    const uint64_t hash = WordCache::hash(word);
    auto known = cache.find(word, hash);
    if (!known.empty()) {
      out.insert(out.end(), known.begin(), known.end());
      continue;
    }
    scratch.clear();
    for (char c : word) scratch.push_back(byte_ids_[uint8_t(c)]);
    const size_t first = out.size();
    merge_word(merges_, scratch, out);
    cache.insert(word, hash, std::span<const int32_t>(out).subspan(first));
  }
}

std::string BpeTokenizer::decode(std::span<const int32_t> ids) const {
  std::string out;
  for (int32_t id : ids) {
    token_of(id);
    out += bytes_[size_t(id)];
  }
  return out;
}

std::optional<int32_t> BpeTokenizer::id_of(std::string_view token) const {
  auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const std::string& BpeTokenizer::token_of(int32_t id) const {
  check(id >= 0 && id < vocab_size(), "tokenizer: id ", id, " is outside the vocabulary of ",
        vocab_size());
  check(!spelled_[size_t(id)].empty(), "tokenizer: no token has the id ", id);
  return spelled_[size_t(id)];
}

}  // namespace brine::data
