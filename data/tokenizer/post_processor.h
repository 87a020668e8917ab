// Additions to encoded texts: the special tokens of a model and type ids; and the truncation before
// that.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"

namespace brine::data {

// The tokens of one text before any are added.
struct TokenRun {
  std::vector<int32_t> ids;
  std::vector<TextSpan> offsets;
};

class PostProcessor {
 public:
  PostProcessor();  // adds nothing; the type ids are 0 and 1
  // From the "post_processor" of tokenizer.json: null, ByteLevel, BertProcessing,
  // RobertaProcessing, TemplateProcessing or a Sequence of ByteLevel and one other. Errors start
  // with `where`.
  PostProcessor(const nlohmann::json& description, const std::string& where);

  // The number of tokens that are added to one text or to a pair.
  size_t added(bool pair) const;
  // Whether offsets exclude the spaces at the ends of a token, and whether a space was added before
  // the text.
  bool trims_offsets() const { return trims_offsets_; }
  bool prefix_space() const { return prefix_space_; }
  // Adds the tokens; `second` may be null.
  Encoding apply(const TokenRun& first, const TokenRun* second) const;
  // The largest id that is added, -1 if there is none.
  int32_t largest_id() const;

 private:
  struct Part {
    int8_t sequence;  // 0 or 1: a text; -1: the ids
    int32_t type;
    std::vector<int32_t> ids;
  };
  using Parts = std::vector<Part>;
  void read(const nlohmann::json& description, const std::string& where, bool inside);

  Parts single_, pair_;
  bool trims_offsets_ = false, prefix_space_ = false, places_ = false;
};

// Truncates texts at their ends to `room` tokens in total, as the strategy longest_first of
// `tokenizers`: the longer one to what the shorter leaves, then both to half, the odd token to the
// longer one (the second on a tie). `second` may be null.
void truncate_longest_first(TokenRun& first, TokenRun* second, size_t room);

}  // namespace brine::data
