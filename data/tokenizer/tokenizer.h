// What every tokenizer does, and how one is loaded from the files of Hugging Face's libraries.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace brine::data {

// Tokens with a role; a tokenizer may lack any of them.
struct SpecialIds {
  std::optional<int32_t> bos = {}, eos = {}, pad = {}, unk = {}, cls = {}, sep = {}, mask = {};
};

// Bytes [begin, end) of a text; both lie between characters.
struct TextSpan {
  size_t begin = 0, end = 0;
  bool operator==(const TextSpan&) const = default;
};

// One text or a pair as a model reads it; all lists have one entry per token.
struct Encoding {
  std::vector<int32_t> ids;
  std::vector<int32_t> type_ids;      // token_type_ids: 0 or 1 as the tokenizer's files say
  std::vector<uint8_t> special_mask;  // 1 where the tokenizer put a token that is in no text
  std::vector<int8_t> sequence;       // 0 or 1: of which text; -1 where special_mask is 1
  // Where in its text, in bytes, a token stands: the characters that it was made of. A token that
  // holds a part of a character has the whole of it; an added token has {0, 0}.
  std::vector<TextSpan> offsets;
};

// Its methods may be called from several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // The ids of `text`, nothing put before or after. A special token that is spelled out in the
  // text ("</s>") becomes its id. Text that is not UTF-8 is an error naming the byte offset.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;

  // A text, or two, with the tokens that a model of this kind wants around them: [CLS] and [SEP]
  // of BERT, </s> in front of OPT's. More than `max_tokens` in all are cut at the ends, the longer
  // text first ("longest_first"); a limit below the number of added tokens is an error. No second
  // text (nullopt) is not the same as an empty one, which gets its [SEP].
  virtual Encoding encode_pair(std::string_view first,
                               std::optional<std::string_view> second = std::nullopt,
                               int64_t max_tokens = INT64_MAX) const = 0;

  // The text of `ids`. Special tokens are spelled out or, on request, left out. Where ids of BPE
  // were cut inside a character the bytes are those of the part; WordPiece gives its words with
  // single spaces. An id outside the vocabulary is an error.
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special = false) const = 0;

  // One more than the largest id: the rows that an embedding needs.
  virtual int64_t vocab_size() const = 0;
  virtual SpecialIds special() const = 0;
  virtual std::optional<int32_t> id_of(std::string_view token) const = 0;
  // The token as the vocabulary spells it; throws for an id that no token has.
  virtual const std::string& token_of(int32_t id) const = 0;

  // tokenizer.json as Hugging Face's `tokenizers` writes it.
  virtual std::string to_json() const = 0;
  // SHA-256, in hex, of the canonical tokenizer.json: tokenizers that encode() alike (vocabulary,
  // merges, added tokens, normalizer) have the same hash, whatever else their files say.
  virtual std::string hash() const = 0;
  // Writes a directory that transformers loads; makes it where it does not exist.
  virtual void save(const std::string& dir) const = 0;
};

// Loads a directory or a tokenizer.json by itself. A directory holds tokenizer.json, or vocab.json
// with merges.txt, or vocab.txt; tokenizer_config.json, special_tokens_map.json and config.json are
// heeded if they are there. Throws Error with the file and the reason; what would encode in a way
// that is not supported is refused by name.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path);

}  // namespace brine::data
