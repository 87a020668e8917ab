// The table of tasks.
#include "data/tasks/task.h"

#include "data/tasks/task_readers.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

std::vector<TaskSplit> usual_splits() {
  return {{.name = "train", .file = "train.tsv"},
          {.name = "dev", .file = "dev.tsv"},
          {.name = "test", .file = "test.tsv", .labelled = false}};
}

std::vector<TaskSplit> cola_splits() {
  std::vector<TaskSplit> splits = usual_splits();
  for (TaskSplit& split : splits) {
    if (split.labelled) split.columns = {"source", "label", "mark", "sentence"};
  }
  return splits;
}

std::vector<TaskSplit> mnli_splits() {
  return {{.name = "train", .file = "train.tsv"},
          {.name = "dev_matched", .file = "dev_matched.tsv"},
          {.name = "dev_mismatched", .file = "dev_mismatched.tsv"},
          {.name = "test_matched", .file = "test_matched.tsv", .labelled = false},
          {.name = "test_mismatched", .file = "test_mismatched.tsv", .labelled = false}};
}

std::vector<TaskSplit> text_splits() {
  return {{.name = "train", .file = {}}, {.name = "dev", .file = {}}, {.name = "test", .file = {}}};
}

// The labelled files or directories of the three splits.
std::vector<TaskSplit> splits_in(const char* train, const char* dev, const char* test) {
  return {{.name = "train", .file = train},
          {.name = "dev", .file = dev},
          {.name = "test", .file = test}};
}

// Tasks of Long Range Arena, which models learn from the start.
std::vector<Task> long_range_tasks() {
  return {
      {.name = "listops",
       .about = "the value of a nested expression of digits",
       .first = "Source",
       .label = "Target",
       .labels = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"},
       .metrics = {Metric::accuracy},
       .splits = splits_in("basic_train.tsv", "basic_val.tsv", "basic_test.tsv"),
       .read = read_listops,
       .tokenizer = listops_tokenizer},
  };
}

std::vector<Task> make_table() {
  using enum Metric;
  // The order of labels is that of the published checkpoints for GLUE.
  const std::vector<std::string> binary = {"0", "1"};
  const std::vector<std::string> entailment3 = {"entailment", "neutral", "contradiction"};
  const std::vector<std::string> entailment2 = {"entailment", "not_entailment"};
  return {
      {.name = "cola",
       .about = "is the sentence acceptable English",
       .folder = "CoLA",
       .first = "sentence",
       .label = "label",
       .labels = binary,
       .metrics = {matthews},
       .splits = cola_splits(),
       .read = read_rows},
      {.name = "sst2",
       .about = "does the sentence of a film review praise",
       .folder = "SST-2",
       .first = "sentence",
       .label = "label",
       .labels = binary,
       .metrics = {accuracy},
       .splits = usual_splits(),
       .read = read_rows},
      {.name = "mrpc",
       .about = "do two sentences of the news say the same",
       .folder = "MRPC",
       .first = "#1 String",
       .second = "#2 String",
       .label = "Quality",
       .labels = binary,
       .metrics = {accuracy, f1},
       .splits = usual_splits(),
       .read = read_rows},
      {.name = "qqp",
       .about = "do two questions ask the same",
       .folder = "QQP",
       .first = "question1",
       .second = "question2",
       .label = "is_duplicate",
       .labels = binary,
       .metrics = {accuracy, f1},
       .splits = usual_splits(),
       .rows_span_lines = true,
       .read = read_rows},
      {.name = "stsb",
       .about = "how similar two sentences are, from 0 to 5",
       .folder = "STS-B",
       .first = "sentence1",
       .second = "sentence2",
       .label = "score",
       .metrics = {pearson, spearman},
       .splits = usual_splits(),
       .lowest = 0,
       .highest = 5,
       .read = read_rows},
      {.name = "mnli",
       .about = "does the first sentence entail or contradict the second",
       .folder = "MNLI",
       .first = "sentence1",
       .second = "sentence2",
       .label = "gold_label",
       .labels = entailment3,
       .metrics = {accuracy},
       .splits = mnli_splits(),
       .read = read_rows},
      {.name = "qnli",
       .about = "does the sentence answer the question",
       .folder = "QNLI",
       .first = "question",
       .second = "sentence",
       .label = "label",
       .labels = entailment2,
       .metrics = {accuracy},
       .splits = usual_splits(),
       .read = read_rows},
      {.name = "rte",
       .about = "does the first text entail the second",
       .folder = "RTE",
       .first = "sentence1",
       .second = "sentence2",
       .label = "label",
       .labels = entailment2,
       .metrics = {accuracy},
       .splits = usual_splits(),
       .read = read_rows},
      {.name = "wnli",
       .about = "is the pronoun of the first sentence resolved correctly in the second",
       .folder = "WNLI",
       .first = "sentence1",
       .second = "sentence2",
       .label = "label",
       .labels = binary,
       .metrics = {accuracy},
       .splits = usual_splits(),
       .read = read_rows},
      {.name = "wordnet",
       .about = "which of the 45 lexicographer files of WordNet contains a gloss",
       .first = "gloss",
       .labels = wordnet_files(),
       .metrics = {accuracy},
       .splits = text_splits(),
       .default_data = "/usr/share/wordnet",
       .read = read_wordnet},
      {.name = "books",
       .about = "which book a long passage comes from",
       .first = "passage",
       .metrics = {accuracy},
       .splits = text_splits(),
       .passages = true,
       .read = read_books},
      {.name = "tsv",
       .about = "texts and labels, or scores, of your files",
       .first = "text",
       .label = "label",
       .metrics = {accuracy, f1, matthews},
       .splits = text_splits(),
       .user_files = true,
       .read = read_rows},
  };
}

template <class Items>
std::string names_of(const Items& items) {
  std::string list;
  for (const auto& item : items) list += (list.empty() ? "" : ", ") + item.name;
  return list;
}

}  // namespace

const std::vector<Task>& tasks() {
  static const std::vector<Task> table = [] {
    std::vector<Task> all = make_table();
    for (Task& task : long_range_tasks()) all.push_back(std::move(task));
    return all;
  }();
  return table;
}

const Task& task_named(const std::string& name) {
  for (const Task& task : tasks()) {
    if (task.name == name) return task;
  }
  throw Error(join("task: unknown task '", name, "'; known are ", names_of(tasks())));
}

TaskSplit split_named(const Task& task, const std::string& name) {
  for (const TaskSplit& split : task.splits) {
    if (split.name == name) return split;
  }
  const bool files = task.user_files || !task.folder.empty();
  check(files && (name.ends_with(".tsv") || (task.user_files && name.ends_with(".jsonl"))), "task ",
        task.name, ": unknown split '", name, "'; known are ", names_of(task.splits),
        files ? ", or a file FILE.tsv" : "", task.user_files ? " or FILE.jsonl" : "");
  TaskSplit split = task.splits.front();
  split.name = split.file = name;
  return split;
}

std::vector<TaskSplit> dev_splits_of(const Task& task) {
  std::vector<TaskSplit> out;
  for (const TaskSplit& split : task.splits) {
    if (split.name.starts_with("dev")) out.push_back(split);
  }
  return out;
}

TaskExamples read_task(const Task& task, const Path& dir, const TaskSplit& split) {
  check(!dir.empty() || !task.default_data.empty(), "task ", task.name,
        ": its data directory must be given");
  TaskExamples examples = task.read(task, dir.empty() ? Path(task.default_data) : dir, split);
  check_format(!examples.rows.empty(), dir.string(), ": split ", split.name, " of task ", task.name,
               " has no rows");
  return examples;
}

std::vector<std::string> labels_of(const Task& task, const Path& dir, const TaskSplit& split) {
  if (!task.labels.empty() || task.regression()) return task.labels;
  return read_task(task, dir, split).labels;
}

}  // namespace brine::data
