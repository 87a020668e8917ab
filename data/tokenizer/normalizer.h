// The normalization of a text before it is cut into words: BERT's cleaning, accents, lower case,
// NFD.
#pragma once

#include <nlohmann/json_fwd.hpp>
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

// The normalization steps of `tokenizers` for models of BERT's family, with its Unicode tables,
// which are not the newest ones: data/tokenizer/tokenizer_ranges.h.
class Normalizer {
 public:
  Normalizer() = default;  // changes nothing
  // From the "normalizer" of tokenizer.json: null, BertNormalizer, Lowercase, NFD, StripAccents or
  // a Sequence of those. Others are an error that starts with `where`.
  Normalizer(const nlohmann::json& description, const std::string& where);

  bool empty() const { return steps_.empty(); }
  // `text` is well-formed UTF-8.
  Normalized apply(std::string_view text, bool want_origin = false) const;

 private:
  enum class Step : uint8_t { kClean, kSplitChinese, kDecompose, kDropAccents, kDropMarks, kLower };
  struct Char;
  void add(const nlohmann::json& description, const std::string& where, int depth);
  void make_ascii_table();
  void apply_to_run(std::string_view text, size_t begin, size_t end, Normalized& out,
                    bool want_origin) const;
  static void decompose(std::vector<Char>& run);

  std::vector<Step> steps_;
  unsigned char ascii_[128] = {};  // the result for an ASCII character; kNotAlone: see apply()
};

// White space, punctuation or neither, by BERT's pre-tokenisation.
enum class BertClass : uint8_t { kWord, kSpace, kPunctuation };
BertClass bert_class(uint32_t c);

}  // namespace brine::data
