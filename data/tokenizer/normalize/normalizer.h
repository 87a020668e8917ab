// The normalization of a text before it is cut into words.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/regex/regex.h"

namespace brine::data {

// The steps of normalization that look at single characters and the marks after them.

// BERT's cleaning, accents, lower case, NFD and NFC, with the Unicode tables of `tokenizers`, which
// are not the newest ones: data/tokenizer/normalize/tokenizer_ranges.h.
class CharacterNormalizer {
 public:
  enum class Step : uint8_t {
    kClean,
    kSplitChinese,
    kDecompose,
    kCompose,  // after kDecompose
    kDropAccents,
    kDropMarks,
    kLower
  };
  explicit CharacterNormalizer(std::vector<Step> steps);

  // `text` is well-formed UTF-8.
  std::string apply(std::string_view text) const;

 private:
  void make_ascii_table();
  void apply_to_run(std::string_view text, std::string& out) const;

  std::vector<Step> steps_;
  bool composes_ = false;
  unsigned char ascii_[128] = {};  // the result for an ASCII character; kNotAlone: see apply()
};

// White space, punctuation or neither, by BERT's pre-tokenisation.
enum class BertClass : uint8_t { kWord, kSpace, kPunctuation };
BertClass bert_class(uint32_t c);

class Normalizer {
 public:
  Normalizer() = default;  // changes nothing
  // From the "normalizer" of tokenizer.json: null, BertNormalizer, Lowercase, NFC, NFD,
  // StripAccents, Prepend, Replace or a Sequence of those. Others are an error that starts with
  // `where`.
  Normalizer(const nlohmann::json& description, const std::string& where);

  bool empty() const { return stages_.empty(); }
  // `text` is well-formed UTF-8.
  std::string apply(std::string_view text) const;

 private:
  struct Stage {
    std::optional<CharacterNormalizer> characters = {};
    TextPattern from = {};  // Replace; empty: Prepend
    std::string to = {};
    std::string apply(std::string_view text,
                      size_t max_bytes) const;  // stops beyond `max_bytes` bytes
  };
  using Steps = std::vector<CharacterNormalizer::Step>;
  void add(const nlohmann::json& description, const std::string& where, int depth, Steps& steps);
  void add_replace(const nlohmann::json& description, const std::string& where);
  void finish(Steps& steps);

  std::vector<Stage> stages_;
};

}  // namespace brine::data
