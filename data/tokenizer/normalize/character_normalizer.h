// The steps of normalization that look at single characters and the marks after them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace brine::data {

// A normalized text and, if requested, the spans of the original from which its bytes are derived.
struct Normalized {
  std::string text;
  std::vector<TextSpan> origin;  // by byte of `text`; empty if not requested
};

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
  Normalized apply(std::string_view text, bool want_origin) const;

 private:
  struct Char;
  void make_ascii_table();
  void apply_to_run(std::string_view text, size_t begin, size_t end, Normalized& out,
                    bool want_origin) const;
  void apply_step(Step step, std::vector<Char>& run) const;
  static void decompose(std::vector<Char>& run);
  static void compose(std::vector<Char>& run);

  std::vector<Step> steps_;
  bool composes_ = false;
  unsigned char ascii_[128] = {};  // the result for an ASCII character; kNotAlone: see apply()
};

// White space, punctuation or neither, by BERT's pre-tokenisation.
enum class BertClass : uint8_t { kWord, kSpace, kPunctuation };
BertClass bert_class(uint32_t c);

}  // namespace brine::data
