// A prompt as text of variable size, and the largest size that fits a length. Private to the tasks.
#pragma once

#include <functional>

#include "data/suites/prompt.h"
#include "data/suites/words.h"
#include "data/tokenizer/prompt_tokens.h"

namespace brine::data {

struct AnswerPart {
  std::string text;
  bool scored = true;
};

struct Draft {
  std::string text;
  std::vector<AnswerPart> answer;
  std::vector<std::string> references;
};

// The answer " a, b, and c" in which a, b and c are scored.
std::vector<AnswerPart> listed_answer(const std::vector<std::string>& items);

// The draft of some size: words, lines or sentences of the haystack.
using MakeDraft = std::function<Draft(size_t size)>;
// The prompt of the largest draft, of at least `least`, that fits the request's length.
Prompt fitted(const PromptTask& task, const PromptSource& source, const PromptRequest& request,
              const MakeDraft& make, size_t least = 0);

// The choices of a prompt. They do not depend on its size.
Draws draws_of(const PromptTask& task, const PromptRequest& request);

using MakePrompt = Prompt(const PromptTask&, const PromptSource&, const PromptRequest&);
MakePrompt niah, passkey;
MakePrompt variable_tracking, common_words, frequent_words;
MakePrompt mqar, copy_tokens;

}  // namespace brine::data
