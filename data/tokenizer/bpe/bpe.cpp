// Byte-level BPE: building the tables, encoding and decoding.
#include "data/tokenizer/bpe/bpe.h"

#include <algorithm>

#include "data/tokenizer/bpe/byte_alphabet.h"
#include "data/tokenizer/pretokenize.h"
#include "data/unicode/unicode.h"
#include "tensor/error.h"

namespace brine::data {
BpeTokenizer::BpeTokenizer(BpeModel model, const std::string& where) : model_(std::move(model)) {
  build(model_, where);
  bytes_.resize(spelled().size());
  for (size_t id = 0; id < spelled().size(); ++id)
    bytes_[id] = unspell_bytes(spelled()[id]).value_or(spelled()[id]);
  check_bytes(where);
  check_merges(where);
}

void BpeTokenizer::check_bytes(const std::string& where) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string name = spell_bytes(std::string(1, char(byte)));
    const auto id = id_of(name);
    check_format(id.has_value(), where, ": token '", name, "' of byte ", byte,
                 " is missing from the vocabulary");
    byte_ids_[byte] = *id;
  }
}

void BpeTokenizer::check_merges(const std::string& where) {
  merges_.reset(model_.merges.size());
  for (size_t rank = 0; rank < model_.merges.size(); ++rank) {
    auto [left, right] = model_.merges[rank];
    const auto size = int64_t(spelled().size());
    check_format(left >= 0 && left < size && right >= 0 && right < size, where, ": merge ", rank,
                 " has ids outside the vocabulary");
    const std::string whole = spelled()[size_t(left)] + spelled()[size_t(right)];
    const auto id = id_of(whole);
    check_format(id.has_value(), where, ": merge ", rank, " makes '", whole,
                 "', which is missing from the vocabulary");
    merges_.set(left, right, {uint32_t(rank), *id});
  }
}

void BpeTokenizer::encode_piece(std::string_view text, WordCache& cache, std::vector<int32_t>& out,
                                std::vector<TextSpan>* offsets) const {
  if (text.empty()) return;
  const bool prefixed = model_.add_prefix_space && text[0] != ' ';
  const size_t before = out.size();
  if (prefixed)
    encode_words(" " + std::string(text), cache, out);
  else
    encode_words(text, cache, out);
  if (!offsets) return;
  // The prefix space counts as the first character.
  size_t first = 0;
  next_char(text, first);
  size_t start = 0;
  for (size_t i = before; i < out.size(); ++i) {
    const size_t stop = start + bytes_[size_t(out[i])].size();
    if (prefixed)
      offsets->push_back({start == 0 ? 0 : start - 1, stop == 1 ? first : stop - 1});
    else
      offsets->push_back({start, stop});
    start = stop;
  }
}

void BpeTokenizer::encode_words(std::string_view text, WordCache& cache,
                                std::vector<int32_t>& out) const {
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

// As in `tokenizers`: by the spaces at the ends of a token's spelling, counted in characters of the
// text. The first space of a text that begins with a prefix space takes nothing away.
void BpeTokenizer::trim_offsets(TokenRun& run, std::string_view text) const {
  auto continues = [&](size_t at) {
    return at < text.size() && (uint8_t(text[at]) & 0xc0) == 0x80;
  };
  for (size_t i = 0; i < run.ids.size(); ++i) {
    const std::string& token = bytes_[size_t(run.ids[i])];
    const size_t first = std::min(token.find_first_not_of(' '), token.size());
    const size_t last = token.find_last_not_of(' ');
    const size_t trailing = last == std::string::npos ? token.size() : token.size() - 1 - last;
    TextSpan& span = run.offsets[i];
    const bool ours = (i == 0 || span.begin == 0) && model_.post_processor.prefix_space();
    for (size_t n = ours && first > 0 ? 1 : 0; n < first && span.begin < span.end; ++n)
      while (continues(++span.begin)) continue;
    for (size_t n = 0; n < trailing && span.begin < span.end; ++n)
      while (continues(--span.end)) continue;
  }
}

std::string BpeTokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string out;
  for (int32_t id : ids) {
    token_of(id);
    if (skip_special && is_special(id)) continue;
    out += bytes_[size_t(id)];
  }
  return out;
}

}  // namespace brine::data
