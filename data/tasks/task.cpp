// The table of tasks.
#include "data/tasks/task.h"

#include "data/io/utf8.h"
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

// A task of GLUE. Labels are in the order of the published checkpoints; without any it is a
// regression.
Task glue(const char* name, const char* about, const char* folder, const char* first,
          const char* second, const char* label, std::vector<std::string> labels,
          std::vector<Metric> metrics, std::vector<TaskSplit> splits = usual_splits()) {
  return {.name = name,
          .about = about,
          .folder = folder,
          .first = first,
          .second = second,
          .label = label,
          .labels = std::move(labels),
          .metrics = std::move(metrics),
          .splits = std::move(splits),
          .read = read_rows};
}

std::vector<Task> make_table() {
  using enum Metric;
  const std::vector<std::string> binary = {"0", "1"};
  const std::vector<std::string> entailment3 = {"entailment", "neutral", "contradiction"};
  const std::vector<std::string> entailment2 = {"entailment", "not_entailment"};
  Task questions = glue("qqp", "do two questions ask the same", "QQP", "question1", "question2",
                        "is_duplicate", binary, {accuracy, f1});
  questions.rows_span_lines = true;
  Task similarity = glue("stsb", "how similar two sentences are, from 0 to 5", "STS-B", "sentence1",
                         "sentence2", "score", {}, {pearson, spearman});
  similarity.highest = 5;
  return {
      // name, question, folder, columns of the texts and the label, labels, metrics, splits
      glue("cola", "is the sentence acceptable English", "CoLA", "sentence", "", "label", binary,
           {matthews}, cola_splits()),
      glue("sst2", "does the sentence of a film review praise", "SST-2", "sentence", "", "label",
           binary, {accuracy}),
      glue("mrpc", "do two sentences of the news say the same", "MRPC", "#1 String", "#2 String",
           "Quality", binary, {accuracy, f1}),
      questions,
      similarity,
      glue("mnli", "does the first sentence entail or contradict the second", "MNLI", "sentence1",
           "sentence2", "gold_label", entailment3, {accuracy}, mnli_splits()),
      glue("qnli", "does the sentence answer the question", "QNLI", "question", "sentence", "label",
           entailment2, {accuracy}),
      glue("rte", "does the first text entail the second", "RTE", "sentence1", "sentence2", "label",
           entailment2, {accuracy}),
      glue("wnli", "is the pronoun of the first sentence resolved correctly in the second", "WNLI",
           "sentence1", "sentence2", "label", binary, {accuracy}),
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
      // Of Long Range Arena: models learn it from the start.
      {.name = "listops",
       .about = "the value of a nested expression of digits",
       .first = "Source",
       .label = "Target",
       .labels = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"},
       .metrics = {accuracy},
       .splits = {{.name = "train", .file = "basic_train.tsv"},
                  {.name = "dev", .file = "basic_val.tsv"},
                  {.name = "test", .file = "basic_test.tsv"}},
       .read = read_listops,
       .tokenizer = listops_tokenizer},
  };
}

}  // namespace

const std::vector<Task>& tasks() {
  static const std::vector<Task> table = make_table();
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
