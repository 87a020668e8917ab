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
  std::optional<int32_t> bos, eos, pad, unk;
};

// Its methods may be called from several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // The ids of `text`, nothing put before or after. A special token that is spelled out in the
  // text ("</s>") becomes its id. Text that is not UTF-8 is an error naming the byte offset.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  // The text of `ids`, special tokens spelled out. Where ids were cut inside a character the bytes
  // are those of the part. An id outside the vocabulary is an error.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;

  // One more than the largest id: the rows that an embedding needs.
  virtual int64_t vocab_size() const = 0;
  virtual SpecialIds special() const = 0;
  virtual std::optional<int32_t> id_of(std::string_view token) const = 0;
  // The token as the vocabulary spells it; throws for an id that no token has.
  virtual const std::string& token_of(int32_t id) const = 0;

  // tokenizer.json as Hugging Face's `tokenizers` writes it.
  virtual std::string to_json() const = 0;
  // SHA-256, in hex, of the canonical tokenizer.json: tokenizers of the same vocabulary, merges and
  // added tokens have the same hash, whatever else their files say.
  virtual std::string hash() const = 0;
  // Writes a directory that transformers loads; makes it where it does not exist.
  virtual void save(const std::string& dir) const = 0;
};

// Loads a directory (tokenizer.json, or vocab.json + merges.txt; with tokenizer_config.json and
// special_tokens_map.json if they are there) or a tokenizer.json by itself. Throws Error with the
// file and the reason.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path);

}  // namespace brine::data
