// Reading the splits of a task, and which of them a command chose.
#include "distill/inputs/task_split.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <sstream>

#include "data/codec/checksums.h"
#include "tensor/base/error.h"

namespace brine::distill {
namespace {

std::vector<std::string> words(const std::string& text, char separator) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, separator);) out.push_back(word);
  return out;
}

constexpr std::string_view kUserFiles = "tsv:";  // starts what a head says of a task of user files

// "0=negative,1=positive"
std::string examples(const std::vector<std::string>& labels,
                     const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < labels.size(); ++i) out += join(i ? "," : "", labels[i], "=", names[i]);
  return out;
}

}  // namespace

std::vector<std::string> names_of(const nn::ClassHead& head) {
  std::vector<std::string> names = head.names;
  for (int64_t i = int64_t(names.size()); i < head.labels; ++i) names.push_back(join("LABEL_", i));
  return names;
}

data::Task task_of(const TaskChoice& choice, const nn::ClassHead& head) {
  data::Task task = data::task_named(choice.task);
  if (!task.user_files) {
    check(choice.fields.empty() && !choice.regression, "task ", task.name, ": --",
          choice.regression ? "regression" : "fields", " is of --task tsv");
    return task;
  }
  const bool recorded = choice.fields.empty() && head.task.starts_with(kUserFiles);
  const std::string text = recorded                ? head.task.substr(kUserFiles.size())
                           : choice.fields.empty() ? "text,label"
                                                   : choice.fields;
  const std::vector<std::string> fields = words(text, ',');
  const std::set<std::string> different(fields.begin(), fields.end());
  check((fields.size() == 2 || fields.size() == 3) && different.size() == fields.size() &&
            !different.contains(""),
        "task tsv: --fields is '", text, "', wanted TEXT,LABEL or TEXT,SECOND,LABEL");
  task.first = fields.front();
  task.second = fields.size() == 3 ? fields[1] : "";
  task.label = fields.back();
  if (choice.regression || (head.labels == 1 && head.problem.value_or(nn::Problem::regression) ==
                                                    nn::Problem::regression)) {
    task.metrics = {data::Metric::pearson, data::Metric::spearman};
    task.highest = std::numeric_limits<double>::infinity();
    task.lowest = -task.highest;
  } else if (!choice.labels.empty()) {
    std::set<std::string> known;
    for (const std::string& pair : words(choice.labels, ',')) {
      task.labels.push_back(pair.substr(0, pair.find('=')));
      known.insert(pair.find('=') == pair.npos ? "" : task.labels.back());
    }
    check(known.size() >= 2 && known.size() == task.labels.size() && !known.contains(""),
          "task tsv: --labels is '", choice.labels,
          "', wanted LABEL=NAME,LABEL=NAME for each label");
    data::sort_labels(task.labels);
  } else {
    task.labels = names_of(head);
  }
  return task;
}

std::string recorded_name(const data::Task& task) {
  if (!task.user_files) return task.name;
  return join(kUserFiles, task.first, task.pairs() ? "," + task.second : "", ",", task.label);
}

std::string text_fields(const nn::ClassHead& head) {
  if (!head.task.starts_with(kUserFiles)) return "text";
  return head.task.substr(kUserFiles.size(), head.task.rfind(',') - kUserFiles.size());
}

std::optional<bool> takes_pairs(const nn::ClassHead& head) {
  if (head.task.starts_with(kUserFiles))
    return std::count(head.task.begin(), head.task.end(), ',') == 2;
  for (const data::Task& task : data::tasks())
    if (task.name == head.task) return task.pairs();
  return {};
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

bool is_of_other_task(const nn::ClassHead& head, const data::Task& task) {
  if (head.task == task.name || head.task == recorded_name(task)) return false;
  return head.task.starts_with(kUserFiles) ||
         std::ranges::find(data::tasks(), head.task, &data::Task::name) != data::tasks().end();
}

std::vector<int64_t> class_map(const nn::ClassHead& head, const ClassNames& of,
                               const Messages& messages) {
  const std::vector<std::string>& labels = of.labels;
  if (labels.empty() || (of.pairs.empty() && (head.names.empty() || head.names == labels)))
    return {};
  check(head.labels == int64_t(labels.size()), "task: the model was made for other labels, ",
        head.labels, head.names.empty() ? "" : " with '" + head.names.front() + "'",
        ", than the task's ", labels.size());
  const std::vector<std::string> names = names_of(head);
  std::map<std::string, int64_t> classes;  // of the task, by the name of the model's
  for (const std::string& pair : words(of.pairs, ',')) {
    const size_t sign = pair.find('=');
    const auto label = std::find(labels.begin(), labels.end(), pair.substr(0, sign));
    check(sign != std::string::npos && label != labels.end(), "task: --labels has '", pair,
          "', wanted ", examples(labels, names));
    classes[data::plain_label(pair.substr(sign + 1))] = label - labels.begin();
  }
  if (classes.empty()) {
    for (size_t i = 0; i < labels.size(); ++i) classes[data::plain_label(labels[i])] = int64_t(i);
  }
  std::vector<int64_t> out;
  std::set<int64_t> taken;
  for (const std::string& name : names) {
    const auto found = classes.find(data::plain_label(name));
    if (found != classes.end() && taken.insert(found->second).second) out.push_back(found->second);
  }
  if (out.empty() && of.pairs.empty() && !is_of_other_task(head, of.task)) {
    messages.warning("task ", of.task.name, ": the model's classes count in the order of its ids, ",
                     examples(labels, names), "; --labels gives another order");
    return {};
  }
  check(out.size() == labels.size(), "task: the model was made for other labels, ", names.size(),
        " with '", names.front(), "', than the task's ", labels.size(),
        "; say which is which, for example --labels ", examples(labels, names));
  return std::is_sorted(out.begin(), out.end()) ? std::vector<int64_t>() : out;
}

}  // namespace brine::distill
