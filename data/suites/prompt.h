// Prompts of tasks whose answer is in the prompt, made from a seed: needles in a haystack, variable
// tracking, word counts, passkey, associative recall, copying.
//
// The texts of niah_*, vt, cwe and fwe are the templates of RULER (Hsieh et al., 2024,
// arXiv:2404.06654; github.com/NVIDIA/RULER, Apache-2.0); docs/evaluation.md lists the differences.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/suites/words.h"
#include "data/tokenizer/tokenizer.h"

namespace brine::data {

// A text at a position of the haystack: 0 = before its first unit, n = after its last.
struct Needle {
  size_t position = 0;
  std::string text;
};

// The text in which a needle is hidden: repeated sentences without meaning, or a book.
class Haystack {
 public:
  // Units are lines of five sentences, which are those of RULER's "noise" and of the passkey task
  // of landmark attention (Mohtashami and Jaggi, 2023).
  Haystack();
  // Units are the sentences of the text, with single spaces. Throws when it has none; `name` starts
  // the message.
  Haystack(std::string_view text, const std::string& name);

  // n units with the needles between them; a book starts at a drawn sentence and, after its last,
  // at its first.
  std::string with(std::vector<Needle> needles, size_t n, Draws& draws) const;
  // The position in n units at a depth in percent.
  static size_t position(int64_t depth, size_t n) { return (size_t(depth) * n + 50) / 100; }

 private:
  std::vector<std::string> units_;
  char between_;
};

// The five sentences.
extern const char* const kNoise;

// A prompt and its answer as tokens. The answer is one that a model may give, used as the true
// prefix of later tokens; its tokens between the references (commas, numbers) are not scored.
struct Prompt {
  std::vector<int32_t> ids;
  std::vector<int32_t> answer;
  std::vector<uint8_t> scored;          // by token of the answer
  std::vector<std::string> references;  // texts that the output must contain; empty: tokens only
  int64_t answer_tokens = 0;            // to generate at most
  std::string text;                     // of ids; empty: tokens without a text
};

struct PromptRequest {
  int64_t length = 1024;  // tokens of prompt and answer, at most
  int64_t depth = 50;     // percent, for tasks with a depth
  int64_t sample = 0;
  uint64_t seed = 1;
  int64_t answer_tokens = 0;  // to leave room for; 0 = the task's default
};

// What prompts are made with; it must outlive the calls.
struct PromptSource {
  const Tokenizer& tokenizer;
  const Haystack& haystack;  // of niah_*; the other tasks make theirs
};

struct PromptTask {
  std::string name, about;
  bool has_depth = false;
  bool generated = true;      // false: only scored token by token
  int64_t answer_tokens = 0;  // RULER's number of tokens to generate
  Prompt (*make)(const PromptTask& task, const PromptSource& source, const PromptRequest& request);
  size_t keys = 0, values = 0;  // of niah_*: different keys and values of the needles
};

// All tasks, in the order of the tables.
const std::vector<PromptTask>& prompt_tasks();
// Throws for an unknown name, listing the known ones.
const PromptTask& prompt_task(const std::string& name);

// A function of task, tokenizer, haystack and request. Texts are as long as fits: one more line,
// word or sentence of the haystack would exceed the length. Throws when the shortest does.
Prompt make_prompt(const PromptTask& task, const PromptSource& source,
                   const PromptRequest& request);

// Share of the references that the output contains, in any case of ASCII letters: RULER's
// string_match_all.
double string_match_all(const std::vector<std::string>& references, const std::string& output);

}  // namespace brine::data
