// Conversion of a task's texts to an encoder's tokens.
#include "data/tasks/task_tokens.h"

#include <algorithm>

#include "tensor/base/error.h"

namespace brine::data {
namespace {

int32_t special_id(const Tokenizer& tokenizer, const char* token) {
  std::optional<int32_t> id = tokenizer.id_of(token);
  check(id.has_value(), "tokenizer: has no token ", token, ", which a task's texts need");
  return *id;
}

// The lengths of two texts that get `room` tokens together, as by longest_first of `tokenizers`:
// the longer one has what the shorter one leaves, or half of it, with the odd token. Of two equal
// ones that is the second.
std::pair<size_t, size_t> cut_lengths(size_t a, size_t b, size_t room) {
  if (a + b <= room) return {a, b};
  const size_t shorter = std::min({a, b, room / 2});
  return a > b ? std::pair(room - shorter, shorter) : std::pair(shorter, room - shorter);
}

}  // namespace

TextEncoder::TextEncoder(const Tokenizer& tokenizer, int64_t max_tokens)
    : tokenizer_(tokenizer),
      max_tokens_(max_tokens),
      cls_(special_id(tokenizer, "[CLS]")),
      sep_(special_id(tokenizer, "[SEP]")) {
  check(max_tokens >= 4, "task: texts of ", max_tokens, " tokens, at least 4 are needed");
}

TextTokens TextEncoder::frame(const std::vector<int32_t>& a, const std::vector<int32_t>* b) const {
  TextTokens out;
  const size_t all = a.size() + (b ? b->size() : 0);
  const auto [first, second] =
      cut_lengths(a.size(), all - a.size(), size_t(max_tokens_) - (b ? 3 : 2));
  out.cut = int64_t(all - first - second);
  out.ids.reserve(first + second + 3);
  out.ids.push_back(cls_);
  out.ids.insert(out.ids.end(), a.begin(), a.begin() + int64_t(first));
  out.ids.push_back(sep_);
  out.first = int64_t(out.ids.size());
  if (!b) return out;
  out.ids.insert(out.ids.end(), b->begin(), b->begin() + int64_t(second));
  out.ids.push_back(sep_);
  return out;
}

TextTokens TextEncoder::encode(const std::string& text) const {
  return frame(tokenizer_.encode(text), nullptr);
}

TextTokens TextEncoder::encode_pair(const std::string& first, const std::string& second) const {
  const std::vector<int32_t> b = tokenizer_.encode(second);
  return frame(tokenizer_.encode(first), &b);
}

std::vector<TextTokens> TextEncoder::passages(const std::string& text) const {
  std::vector<int32_t> ids = tokenizer_.encode(text);
  std::vector<TextTokens> out;
  auto step = std::ptrdiff_t(max_tokens_ - 2);
  for (auto at = ids.begin(); ids.end() - at >= step; at += step) {
    out.push_back(frame({at, at + step}, nullptr));
  }
  return out;
}

TaskTokens tokenize_task(const Task& task, const TaskExamples& examples, const Tokenizer& tokenizer,
                         int64_t max_tokens) {
  TextEncoder encoder(tokenizer, max_tokens);
  TaskTokens out{.labels = examples.labels,
                 .labelled = examples.labelled,
                 .regression = task.regression(),
                 .pairs = task.pairs()};
  for (const TaskExample& e : examples.rows) {
    size_t before = out.texts.size();
    if (task.passages) {
      for (TextTokens& passage : encoder.passages(e.first)) out.texts.push_back(std::move(passage));
    } else {
      out.texts.push_back(task.pairs() ? encoder.encode_pair(e.first, e.second)
                                       : encoder.encode(e.first));
    }
    out.targets.resize(out.texts.size(), e.target);
    for (size_t i = before; i < out.texts.size(); ++i) {
      out.longest = std::max(out.longest, int64_t(out.texts[i].ids.size()));
      out.cut_texts += out.texts[i].cut > 0;
    }
  }
  check(!out.texts.empty(), "task ", task.name, ": no text fills a passage of ", max_tokens,
        " tokens");
  return out;
}

}  // namespace brine::data
