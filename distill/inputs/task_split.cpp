// Reading the splits of a task, and which of them a command chose.
#include "distill/inputs/task_split.h"

#include <algorithm>

#include "data/codec/sha256.h"
#include "tensor/base/error.h"

namespace brine::distill {

std::string known_tasks() {
  std::string list;
  for (const data::Task& task : data::tasks()) list += (list.empty() ? "" : ", ") + task.name;
  return list;
}

// With these hashes a resumed run detects other data, and a dump detects other texts.
std::string hash_of(const data::TaskTokens& tokens) {
  data::Sha256 hash;
  for (const data::TextTokens& text : tokens.texts) {
    hash.update(text.ids.data(), text.ids.size() * sizeof(int32_t));
    hash.update(&text.first, sizeof text.first);
  }
  hash.update(tokens.targets.data(), tokens.targets.size() * sizeof(double));
  return hash.hex();
}

TaskSet read_split(const TaskReading& r, const data::TaskSplit& split) {
  data::TaskExamples examples = data::read_task(r.task, r.data, split);
  int64_t positions = r.config.shape().max_positions;
  int64_t max_length = r.max_tokens ? r.max_tokens : positions;
  check(max_length <= positions, "task: texts of ", max_length,
        " tokens are longer than the model's ", positions, " positions");
  auto tokens = std::make_shared<data::TaskTokens>(
      data::tokenize_task(r.task, examples, r.tokenizer, max_length));
  TaskSet out{.split = split, .source = nullptr};
  r.messages.info(r.task.name, " ", split.name, ": ", tokens->texts.size(),
                  r.task.passages ? " passages" : " texts", ", the longest has ", tokens->longest,
                  " tokens, ", tokens->cut_texts, " were cut to ", max_length);
  out.source = std::make_unique<TaskSource>(std::move(tokens), r.seed);
  return out;
}

std::vector<data::TaskSplit> chosen_splits(const data::Task& task, const std::string& name) {
  if (!name.empty()) return {data::split_named(task, name)};
  std::vector<data::TaskSplit> splits = data::dev_splits_of(task);
  check(!splits.empty(), "task ", task.name, ": has no dev split");
  return splits;
}

std::vector<int64_t> class_map(const nn::ModelConfig& config,
                               const std::vector<std::string>& labels) {
  const std::vector<std::string> names = config.family().class_head().names;
  if (names.empty() || names == labels || labels.empty()) return {};
  std::vector<int64_t> out;
  for (const std::string& name : names) {
    auto found = std::find(labels.begin(), labels.end(), name);
    check(found != labels.end() && names.size() == labels.size(),
          "task: the model was made for other labels, ", names.size(), " with '", name,
          "', than the task's ", labels.size());
    out.push_back(found - labels.begin());
  }
  return out;
}

}  // namespace brine::distill
