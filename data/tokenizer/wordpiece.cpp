// WordPiece: cutting text into words, spelling them, and joining pieces again.
#include "data/tokenizer/wordpiece.h"

#include <algorithm>

#include "data/io/utf8.h"
#include "data/unicode/unicode.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

// The spaces that BERT's decoder removes, token by token.
void clean_up(std::string& token) {
  constexpr std::pair<std::string_view, std::string_view> kChanges[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (auto [from, to] : kChanges) token = replaced(token, from, to);
}

}  // namespace

WordPieceTokenizer::WordPieceTokenizer(WordPieceModel model, const std::string& where)
    : model_(std::move(model)) {
  build(model_, where);
  check_format(model_.unk >= 0, where,
               ": the token for unknown words is missing from the vocabulary");
  for (size_t id = 0; id < model_.tokens.size(); ++id) {
    const std::string_view token = model_.tokens[id];
    if (token.empty()) continue;
    // A piece like "##a" also starts a word with that spelling; punctuation always prevents this.
    first_.emplace(token, int32_t(id));
    longest_first_ = std::max(longest_first_, token.size());
    if (!token.starts_with(model_.prefix) || token.size() == model_.prefix.size()) continue;
    next_.emplace(token.substr(model_.prefix.size()), int32_t(id));
    longest_next_ = std::max(longest_next_, token.size() - model_.prefix.size());
  }
}

void WordPieceTokenizer::encode_piece(const Piece& piece, WordCache& cache,
                                      std::vector<int32_t>& out) const {
  const std::string_view text = piece.text;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    const BertClass kind = next_class<bert_class>(text, end);
    if (kind == BertClass::kSpace) {
      at = end;
      continue;
    }
    if (kind == BertClass::kWord) {
      for (size_t next = end; next < text.size(); end = next)
        if (next_class<bert_class>(text, next) != BertClass::kWord) break;
    }
    const std::string_view word = text.substr(at, end - at);
    const size_t before = out.size();
    const uint64_t hash = WordCache::hash(word);
    if (auto known = cache.find(word, hash); !known.empty()) {
      out.insert(out.end(), known.begin(), known.end());
    } else {
      encode_word(word, out);
      cache.insert(word, hash, std::span<const int32_t>(out).subspan(before));
    }
    at = end;
  }
}

void WordPieceTokenizer::encode_word(std::string_view word, std::vector<int32_t>& out) const {
  const auto characters =
      std::count_if(word.begin(), word.end(), [](char c) { return (uint8_t(c) & 0xc0) != 0x80; });
  const size_t before = out.size();
  auto unknown = [&] {
    out.resize(before);
    out.push_back(model_.unk);
  };
  if (characters > model_.longest_word) return unknown();
  for (size_t at = 0; at < word.size();) {
    const Pieces& pieces = at == 0 ? first_ : next_;
    size_t size = std::min(word.size() - at, at == 0 ? longest_first_ : longest_next_);
    auto found = pieces.end();
    for (; size > 0; --size) {
      const size_t end = at + size;
      if (end < word.size() && (uint8_t(word[end]) & 0xc0) == 0x80) continue;
      found = pieces.find(word.substr(at, size));
      if (found != pieces.end()) break;
    }
    if (size == 0) return unknown();
    out.push_back(found->second);
    at += size;
  }
}

std::string WordPieceTokenizer::decoded(int32_t id, bool first) const {
  const std::string& token = token_of(id);
  std::string out = token;
  const std::string& prefix = model_.decoder_prefix;
  if (!first) {
    if (model_.has_decoder && token.starts_with(prefix))
      out.erase(0, prefix.size());
    else
      out.insert(0, 1, ' ');
  }
  if (model_.has_decoder && model_.clean_up) clean_up(out);
  return out;
}

}  // namespace brine::data
