// The table of tasks, the texts around needles, the search for a prompt of a given length, and the
// metric.
#include "data/suites/prompt.h"

#include <algorithm>

#include "data/io/utf8.h"
#include "data/suites/draft.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

Prompt tokens_of(const Draft& draft, const Tokenizer& tokenizer, int64_t answer_tokens) {
  Prompt out{.ids = tokenizer.around().front,
             .answer = {},
             .scored = {},
             .references = draft.references,
             .answer_tokens = answer_tokens,
             .text = draft.text};
  const std::vector<int32_t> ids = tokenizer.encode(draft.text);
  out.ids.insert(out.ids.end(), ids.begin(), ids.end());
  for (const AnswerPart& part : draft.answer) {
    const std::vector<int32_t> more = continuation_tokens(tokenizer, part.text);
    out.answer.insert(out.answer.end(), more.begin(), more.end());
    out.scored.insert(out.scored.end(), more.size(), part.scored);
  }
  out.answer_tokens = std::max(out.answer_tokens, int64_t(out.answer.size()));
  return out;
}

int64_t total(const Prompt& p) { return int64_t(p.ids.size()) + p.answer_tokens; }

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return text;
}

}  // namespace

const std::vector<PromptTask>& prompt_tasks() {
  static const std::vector<PromptTask> all = {
      {"niah_single", "one needle", true, true, 128, niah, 1, 1},
      {"niah_multikey", "one of four needles", true, true, 128, niah, 4, 4},
      {"niah_multivalue", "four values of one key", false, true, 128, niah, 1, 4},
      {"niah_multiquery", "four keys", false, true, 128, niah, 4, 4},
      {"vt", "variable tracking", false, true, 30, variable_tracking},
      {"cwe", "common words", false, true, 120, common_words},
      {"fwe", "frequent words", false, true, 50, frequent_words},
      {"passkey", "a number in repeated text", true, true, 32, passkey},
      {"mqar", "associative recall of tokens", false, false, 0, mqar},
      {"copy", "random tokens repeated", false, false, 0, copy_tokens},
  };
  return all;
}

const PromptTask& prompt_task(const std::string& name) {
  for (const PromptTask& task : prompt_tasks()) {
    if (task.name == name) return task;
  }
  throw Error(join("suite: no task is named '", name, "'; known: ", names_of(prompt_tasks())));
}

Prompt make_prompt(const PromptTask& task, const PromptSource& source,
                   const PromptRequest& request) {
  check(request.depth >= 0 && request.depth <= 100, "suite: a depth of ", request.depth,
        " %, wanted 0 to 100");
  return task.make(task, source, request);
}

Draws draws_of(const PromptTask& task, const PromptRequest& request) {
  const int64_t depth = task.has_depth ? request.depth : 0;
  return {request.seed, join(task.name, "/", request.length, "/", depth, "/", request.sample)};
}

std::vector<AnswerPart> listed_answer(const std::vector<std::string>& items) {
  std::vector<AnswerPart> out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0 && items.size() > 2) out.push_back({",", false});
    if (i > 0 && i + 1 == items.size()) out.push_back({" and", false});
    out.push_back({" " + items[i]});
  }
  return out;
}

Prompt fitted(const PromptTask& task, const PromptSource& source, const PromptRequest& request,
              const MakeDraft& make, size_t least) {
  const int64_t room = request.answer_tokens ? request.answer_tokens : task.answer_tokens;
  auto of_size = [&](size_t size) { return tokens_of(make(size), source.tokenizer, room); };
  Prompt best = of_size(least);
  check(total(best) <= request.length, "suite: task ", task.name, " needs at least ", total(best),
        " tokens for prompt and answer, got a length of ", request.length);
  // Sizes that are known to fit and not to fit; a unit is at least one token.
  const int64_t left = request.length - total(best);
  size_t below = least, above = least + size_t(left) + 1;
  // From a guess by the mean of some units in growing steps until both are known, then by halves.
  constexpr size_t kSome = 16;
  const int64_t of_some = std::max<int64_t>(total(of_size(least + kSome)) - total(best), 1);
  size_t next = least + size_t(left) * kSome / size_t(of_some);
  for (size_t step = 1, found = 0, missed = 0; above - below > 1; step *= 2) {
    next = std::clamp(next, below + 1, above - 1);
    Prompt p = of_size(next);
    const bool fits = total(p) <= request.length;
    (fits ? below : above) = next;
    if (fits) best = std::move(p);
    ++(fits ? found : missed);
    const bool bracketed = found > 0 && missed > 0;
    next = bracketed ? below + (above - below) / 2
           : fits    ? below + step
                     : above - std::min(step, above - below);
  }
  return best;
}

double string_match_all(const std::vector<std::string>& references, const std::string& output) {
  check(!references.empty(), "string_match_all: no references");
  const std::string in = lower(output);
  const auto found = std::count_if(references.begin(), references.end(), [&](const std::string& r) {
    return in.find(lower(r)) != std::string::npos;
  });
  return double(found) / double(references.size());
}

namespace {

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// A sentence ends at white space after one of . ? ! and quotation marks.
bool ends_sentence(const std::string& sentence) {
  const size_t end = sentence.find_last_not_of("\"')");
  return end != std::string::npos && std::string_view(".?!").find(sentence[end]) < 3;
}

std::vector<std::string> sentences_of(std::string_view text) {
  std::vector<std::string> out;
  std::string sentence;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!is_space(text[i])) {
      sentence += text[i];
    } else if (ends_sentence(sentence)) {
      out.push_back(std::move(sentence));
      sentence.clear();
    } else if (!sentence.empty() && !is_space(sentence.back())) {
      sentence += ' ';
    }
  }
  if (ends_sentence(sentence)) out.push_back(sentence);
  return out;
}

}  // namespace

const char* const kNoise =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

Haystack::Haystack() : units_{kNoise}, between_('\n') {}

Haystack::Haystack(std::string_view text, const std::string& name)
    : units_(sentences_of(text)), between_(' ') {
  check(!units_.empty(), name, ": no sentence for the haystack");
}

std::string Haystack::with(std::vector<Needle> needles, size_t n, Draws& draws) const {
  std::ranges::stable_sort(needles, {}, &Needle::position);
  const size_t start = draws.below(units_.size());
  std::string out;
  auto add = [&](const std::string& text) {
    if (!out.empty()) out += between_;
    out += text;
  };
  size_t next = 0;
  for (size_t i = 0; i <= n; ++i) {
    while (next < needles.size() && needles[next].position == i) add(needles[next++].text);
    if (i < n) add(units_[(start + i) % units_.size()]);
  }
  check(next == needles.size(), "haystack: a needle at ", needles.back().position, " of ", n);
  return out;
}

}  // namespace brine::data
