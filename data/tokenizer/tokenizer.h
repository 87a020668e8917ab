// The interface of all tokenizers, and loading one from the files of Hugging Face's libraries.
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

// The special tokens with which a model reads every text: [CLS] and [SEP] of BERT, </s> in front
// for OPT.
struct TokensAround {
  std::vector<int32_t> front, back;
};

// The methods may be called from several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // The ids of `text`, without added tokens. A special token that is spelled out in the text
  // ("</s>") becomes its id. Text that is not UTF-8 is an error naming the byte offset.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;

  // What belongs around the ids of a text; an error if one of these tokens is missing.
  virtual const TokensAround& around() const = 0;

  // The text of `ids`. Special tokens are spelled out or, on request, omitted. If ids of BPE were
  // cut inside a character the bytes are those of the part; WordPiece joins its words with single
  // spaces. An id outside the vocabulary is an error.
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special = false) const = 0;

  // The bytes that a token adds to a text that it continues: decode() of a list is that of the
  // first id and these of the others.
  virtual std::string decode_next(int32_t id) const = 0;

  // One more than the largest id: the number of rows that an embedding needs.
  virtual int64_t vocab_size() const = 0;
  // No token was made from more bytes of a text, but for the white space that an added token
  // includes.
  virtual size_t longest_token() const = 0;
  virtual SpecialIds special() const = 0;
  virtual std::optional<int32_t> id_of(std::string_view token) const = 0;
  // The token as the vocabulary spells it; throws for an id that no token has.
  virtual const std::string& token_of(int32_t id) const = 0;

  // What was read otherwise than the file says it, a line each, which names the file: for warnings.
  virtual const std::vector<std::string>& notes() const = 0;

  // tokenizer.json as Hugging Face's `tokenizers` writes it.
  virtual std::string to_json() const = 0;
  // SHA-256, in hex, of the canonical tokenizer.json: tokenizers that encode() alike (vocabulary,
  // merges, added tokens, normalizer) have the same hash, whatever else is in their files.
  virtual std::string hash() const = 0;
  // The class of transformers that cuts texts as this tokenizer when it gets only the vocabulary
  // and the merges: "GPT2Tokenizer", "Qwen2Tokenizer" or "BertTokenizer"; empty if there is none.
  virtual std::string transformers_class() const = 0;
  // Writes a directory that transformers loads; creates it if it does not exist.
  virtual void save(const std::string& dir) const = 0;
};

// Loads a directory, a single tokenizer.json or the vocabulary of a GGUF file. A directory contains
// tokenizer.json, or vocab.json with merges.txt, or vocab.txt; tokenizer_config.json,
// special_tokens_map.json and config.json are used if they exist. A path where nothing is may be a
// name in the Hub's cache (data/weights/hub_cache.h). Throws Error with the file and the reason; an
// unsupported setting that affects encoding is refused by name.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path);

}  // namespace brine::data
