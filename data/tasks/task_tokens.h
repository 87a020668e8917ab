// The examples of a task as tokens of an encoder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/tasks/task.h"
#include "data/tokenizer/tokenizer.h"

namespace brine::data {

// One text "[CLS] a [SEP]", or a pair "[CLS] a [SEP] b [SEP]" whose second part is segment 1.
struct TextTokens {
  std::vector<int32_t> ids;
  int64_t first = 0;  // tokens of segment 0
  int64_t cut = 0;    // tokens that did not fit
};

// Makes them with a tokenizer that has [CLS] and [SEP].
class TextEncoder {
 public:
  // `max_tokens` includes them, at least 4. Throws when the tokenizer lacks one of the two.
  TextEncoder(const Tokenizer& tokenizer, int64_t max_tokens);

  // Tokens that do not fit are cut off at the end, of a pair from the longer text first.
  TextTokens encode(const std::string& text) const;
  TextTokens encode_pair(const std::string& first, const std::string& second) const;
  // A long text as passages of max_tokens, without the shorter remainder at its end.
  std::vector<TextTokens> passages(const std::string& text) const;

 private:
  TextTokens frame(const std::vector<int32_t>& a, const std::vector<int32_t>* b) const;

  const Tokenizer& tokenizer_;
  int64_t max_tokens_;
  int32_t cls_, sep_;
};

// All examples of a split; passages of one row are consecutive.
struct TaskTokens {
  std::vector<std::string> labels = {};  // as in TaskExamples
  bool labelled = true, regression = false, pairs = false;
  std::vector<TextTokens> texts = {};
  std::vector<double> targets = {};  // of each text
  int64_t longest = 0;               // tokens of the longest text
  int64_t cut_texts = 0;             // texts that did not fit
};

// Throws when a task of passages has no text that fills one.
TaskTokens tokenize_task(const Task& task, const TaskExamples& examples, const Tokenizer& tokenizer,
                         int64_t max_tokens);

}  // namespace brine::data
