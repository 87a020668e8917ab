// Common code of all Hugging Face tokenizers: added tokens and normalization; a derived class
// encodes the pieces between added tokens.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizer/bpe/bpe_merge.h"
#include "data/tokenizer/normalize/normalizer.h"
#include "data/tokenizer/tokenizer.h"

namespace brine::data {

// Tokens that are searched for in a text before any other processing.

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = true;
  bool normalized = false;  // searched for in the normalized text, after those that are not
  bool lstrip = false, rstrip = false;  // includes the white space on that side
};

// Finds the leftmost added token, and among several the longest.
class AddedTokenFinder {
 public:
  struct Found {
    size_t at, end;  // with the white space that the token includes
    int32_t id;      // -1: none, and at = end = the size of the text
  };
  // Searches for `content`, which is the token's text or its normalized form; finish() follows.
  void add(const AddedToken& token, std::string content);
  void finish();
  Found next(std::string_view text, size_t from) const;

 private:
  struct Pattern {
    std::string content;
    int32_t id;
    bool lstrip, rstrip;
  };
  std::vector<Pattern> patterns_;                         // longest first
  std::array<std::vector<uint32_t>, 256> by_first_byte_;  // into patterns_, in their order
  int only_byte_ = -1;                                    // the common first byte of all, if there
                                                          // is one
};

// The contents of any tokenizer's files.
struct TokenizerModel {
  std::vector<std::string> tokens;  // by id; empty where no token has the id
  std::vector<AddedToken> added;    // by id; may or may not be among `tokens`
  SpecialIds special;
  Normalizer normalizer;
  TokensAround around;
  std::vector<std::string> notes = {};  // Tokenizer::notes()
  std::string no_template = {};         // why around() is not possible; empty: it is
  // Kept for writing; empty for the usual content.
  std::string frame;               // tokenizer.json without vocabulary, merges and added tokens
  std::string tokenizer_config;    // tokenizer_config.json
  std::string special_tokens_map;  // special_tokens_map.json
  std::map<std::string, std::string> chat_templates;  // by file, as read: chat_template.jinja, ...
};

class PipelineTokenizer : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const override;
  std::string decode_next(int32_t id) const override { return decoded(id, false); }
  const TokensAround& around() const override;
  int64_t vocab_size() const override { return int64_t(spelled_.size()); }
  size_t longest_token() const override { return longest_; }
  SpecialIds special() const override { return shared_->special; }
  const std::vector<std::string>& notes() const override { return shared_->notes; }
  std::optional<int32_t> id_of(std::string_view token) const override;
  const std::string& token_of(int32_t id) const override;

 protected:
  // `model` belongs to the derived class. Sets its vocabulary and added tokens; ids without a token
  // are allowed, two tokens of one id or two ids of one token are not. Errors start with `where`.
  // Must be called before anything else.
  void build(const TokenizerModel& model, const std::string& where);

  // A normalized text without added tokens, not empty; `first`: the whole text starts with it.
  struct Piece {
    std::string_view text;
    bool first;
  };
  // Appends the ids of a piece to `out`.
  virtual void encode_piece(const Piece& piece, WordCache& cache,
                            std::vector<int32_t>& out) const = 0;

  // The bytes of a token, which is the first one of a text or not; throws for an id without one.
  virtual std::string decoded(int32_t id, bool first) const = 0;

  const std::vector<std::string>& spelled() const { return spelled_; }

 private:
  void encode_with(std::string_view text, WordCache& cache, std::vector<int32_t>& out) const;
  void encode_normalized(const Piece& piece, WordCache& cache, std::vector<int32_t>& out) const;

  const TokenizerModel* shared_ = nullptr;
  std::vector<std::string> spelled_;                   // by id, model and added tokens
  std::unordered_map<std::string_view, int32_t> ids_;  // into spelled_
  std::vector<bool> special_;                          // by id
  size_t longest_ = 0;
  AddedTokenFinder raw_, normalized_;
  mutable std::mutex cache_mutex_;
  mutable WordCache cache_;
};

}  // namespace brine::data
