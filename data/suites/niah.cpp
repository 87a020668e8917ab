// Needles in a haystack with RULER's templates, and the passkey task of landmark attention
// (Mohtashami and Jaggi, 2023).
#include "data/suites/draft.h"

namespace brine::data {
namespace {

constexpr int kDigits = 7;

struct KeyValue {
  std::string key, value;
};

std::string needle(const KeyValue& pair) {
  return "One of the special magic numbers for " + pair.key + " is: " + pair.value + ".";
}

std::string question(const std::string& context, const std::string& query, bool single) {
  const std::string number = single ? "number" : "numbers";
  const std::string it = number + " for " + query + " mentioned in the provided text";
  return (single ? "A special magic number is" : "Some special magic numbers are") +
         std::string(
             " hidden within the following text. Make sure to memorize it. I will quiz "
             "you about the ") +
         number + " afterwards.\n" + context + "\nWhat " +
         (single ? "is the special magic " : "are all the special magic ") + it +
         "? The special magic " + it + (single ? " is" : " are");
}

// The haystack with all pairs; the first at the depth, or all at drawn positions.
std::string hidden(const PromptSource& source, const std::vector<KeyValue>& pairs, Draws& draws,
                   const int64_t* depth, size_t size) {
  std::vector<Needle> needles;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const bool at_depth = depth && i == 0;
    const size_t position = at_depth ? Haystack::position(*depth, size) : draws.below(size + 1);
    needles.push_back({position, needle(pairs[i])});
  }
  return source.haystack.with(std::move(needles), size, draws);
}

std::vector<KeyValue> pairs_of(const std::vector<std::string>& keys,
                               const std::vector<std::string>& values) {
  std::vector<KeyValue> out;
  out.reserve(values.size());
  for (size_t i = 0; i < values.size(); ++i) out.push_back({keys[i % keys.size()], values[i]});
  return out;
}

}  // namespace

// A task with a depth asks for the first key's value, the others for all values.
Prompt niah(const PromptTask& task, const PromptSource& source, const PromptRequest& r) {
  return fitted(task, source, r, [&](size_t size) {
    Draws draws = draws_of(task, r);
    const bool single = task.has_depth;
    const std::vector<std::string> keys = draw_keys(draws, task.keys);
    const std::vector<std::string> values = draw_numbers(draws, task.values, kDigits);
    const std::string text =
        hidden(source, pairs_of(keys, values), draws, single ? &r.depth : nullptr, size);
    const std::string asked_key = single ? keys[0] : enumerated(keys);
    const std::vector<std::string> asked = single ? std::vector{values[0]} : values;
    return Draft{question(text, asked_key, single), listed_answer(asked), asked};
  });
}

Prompt passkey(const PromptTask& task, const PromptSource& source, const PromptRequest& r) {
  return fitted(task, source, r, [&](size_t size) {
    Draws draws = draws_of(task, r);
    const std::string key = std::to_string(10000 + draws.below(40001));  // always five digits
    const std::string line =
        "The pass key is " + key + ". Remember it. " + key + " is the pass key.";
    const Needle needle{Haystack::position(r.depth, size), line};
    return Draft{
        "There is an important info hidden inside a lot of irrelevant text. Find it and memorize "
        "them. I will quiz you about the important information there.\n" +
            Haystack().with({needle}, size, draws) + "\nWhat is the pass key? The pass key is",
        listed_answer({key}),
        {key}};
  });
}

}  // namespace brine::data
