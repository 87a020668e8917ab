// Conversion of a task's texts to an encoder's tokens.
#include "data/tasks/task_tokens.h"

#include <algorithm>

#include "data/tokenizer/post_processor.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

int32_t special_id(const Tokenizer& tokenizer, const char* token) {
  std::optional<int32_t> id = tokenizer.id_of(token);
  check(id.has_value(), "tokenizer: has no token ", token, ", which a task's texts need");
  return *id;
}

}  // namespace

TextEncoder::TextEncoder(const Tokenizer& tokenizer, int64_t max_tokens)
    : tokenizer_(tokenizer),
      max_tokens_(max_tokens),
      cls_(special_id(tokenizer, "[CLS]")),
      sep_(special_id(tokenizer, "[SEP]")) {
  check(max_tokens >= 4, "task: texts of ", max_tokens, " tokens, at least 4 are needed");
}

TextTokens TextEncoder::frame(std::vector<int32_t> a, std::vector<int32_t>* b) const {
  TextTokens out;
  TokenRun first, second;
  first.ids = std::move(a);
  if (b) second.ids = std::move(*b);
  size_t all = first.ids.size() + second.ids.size();
  truncate_longest_first(first, b ? &second : nullptr, size_t(max_tokens_) - (b ? 3 : 2));
  out.cut = int64_t(all - first.ids.size() - second.ids.size());
  out.ids.reserve(first.ids.size() + second.ids.size() + 3);
  out.ids.push_back(cls_);
  out.ids.insert(out.ids.end(), first.ids.begin(), first.ids.end());
  out.ids.push_back(sep_);
  out.first = int64_t(out.ids.size());
  if (!b) return out;
  out.ids.insert(out.ids.end(), second.ids.begin(), second.ids.end());
  out.ids.push_back(sep_);
  return out;
}

TextTokens TextEncoder::encode(const std::string& text) const {
  return frame(tokenizer_.encode(text), nullptr);
}

TextTokens TextEncoder::encode_pair(const std::string& first, const std::string& second) const {
  std::vector<int32_t> b = tokenizer_.encode(second);
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
