// The steps of normalization that look at single characters and the marks after them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace brine::data {

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

}  // namespace brine::data
