// Tasks of tokens without a text: associative recall (MQAR of Zoology, Arora et al., 2023) and
// copying.
#include <algorithm>

#include "data/suites/draft.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

bool is_ordinary(const std::string& text) {
  const size_t begin = text.starts_with(" ") ? 1 : 0;
  return text.size() > begin && std::all_of(text.begin() + int64_t(begin), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
         });
}

// Tokens of letters, with or without a space in front, in drawn order.
std::vector<int32_t> ordinary_tokens(const Tokenizer& tokenizer, const PromptTask& task,
                                     size_t needed, Draws& draws) {
  std::vector<int32_t> out;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const int32_t ids[] = {id};
    bool known = true;
    std::string text;
    try {
      text = tokenizer.decode(ids, true);
    } catch (const Error&) {
      known = false;  // an id without a token
    }
    if (known && is_ordinary(text)) out.push_back(id);
  }
  check(out.size() >= needed, "suite: task ", task.name, " needs ", needed,
        " different tokens of letters, the tokenizer has ", out.size());
  draws.shuffle(out);
  return out;
}

// The prompt of a task: the tokens in front, then `tokens`, of which those from `begin` on are the
// answer.
Prompt cut(const Tokenizer& tokenizer, const std::vector<int32_t>& tokens,
           const std::vector<uint8_t>& scored, size_t begin) {
  Prompt out;
  out.ids = tokenizer.around().front;
  out.ids.insert(out.ids.end(), tokens.begin(), tokens.begin() + int64_t(begin));
  out.answer.assign(tokens.begin() + int64_t(begin), tokens.end());
  out.scored.assign(scored.begin() + int64_t(begin), scored.end());
  return out;
}

// The number of tokens of a prompt after those in front.
int64_t room_for(const PromptTask& task, const Tokenizer& tokenizer, int64_t length,
                 int64_t least) {
  const auto front = int64_t(tokenizer.around().front.size());
  check(length - front >= least, "suite: task ", task.name, " needs at least ", least + front,
        " tokens for prompt and answer, got a length of ", length);
  return length - front;
}

}  // namespace

// Half of the tokens are pairs of a key and a value, the other half the same pairs in another
// order; the values there are scored.
Prompt mqar(const PromptTask& task, const PromptSource& source, const PromptRequest& r) {
  const size_t pairs = size_t(room_for(task, source.tokenizer, r.length, 8)) / 4;
  Draws draws = draws_of(task, r);
  const std::vector<int32_t> pool = ordinary_tokens(source.tokenizer, task, pairs + 2, draws);
  std::vector<std::pair<int32_t, int32_t>> all;
  for (size_t i = 0; i < pairs; ++i) {
    all.push_back({pool[i], pool[pairs + draws.below(pool.size() - pairs)]});
  }
  std::vector<int32_t> tokens;
  std::vector<uint8_t> scored;
  for (const bool again : {false, true}) {
    for (const auto& [key, value] : all) {
      tokens.insert(tokens.end(), {key, value});
      scored.insert(scored.end(), {uint8_t(0), uint8_t(again)});
    }
    draws.shuffle(all);
  }
  return cut(source.tokenizer, tokens, scored, 2 * pairs + 1);
}

// Drawn tokens, then the same again; every repeated token after the first is scored.
Prompt copy_tokens(const PromptTask& task, const PromptSource& source, const PromptRequest& r) {
  const size_t half = size_t(room_for(task, source.tokenizer, r.length, 4)) / 2;
  Draws draws = draws_of(task, r);
  const std::vector<int32_t> pool = ordinary_tokens(source.tokenizer, task, 2, draws);
  std::vector<int32_t> tokens;
  tokens.reserve(2 * half);
  for (size_t i = 0; i < half; ++i) tokens.push_back(pool[draws.below(pool.size())]);
  for (size_t i = 0; i < half; ++i) tokens.push_back(tokens[i]);
  return cut(source.tokenizer, tokens, std::vector<uint8_t>(tokens.size(), 1), half + 1);
}

}  // namespace brine::data
