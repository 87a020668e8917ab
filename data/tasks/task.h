// Tasks of text classification and regression: which files a task has, how they are read and by
// which metrics it is scored. A new task is one entry of the table in data/tasks/task.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/io/file_io.h"
#include "data/tokenizer/tokenizer.h"

namespace brine::data {

enum class Metric { accuracy, f1, matthews, pearson, spearman };

struct TaskExample {
  std::string first, second = {};  // the second is empty if the task has one text
  double target = 0;               // the class, or the score of a regression; 0 if unlabelled
};

struct TaskExamples {
  std::vector<std::string> labels = {};  // by class; empty: regression
  std::vector<TaskExample> rows = {};
  bool labelled = true;
};

// One file of a task. Texts and labels are found by the names of their columns.
struct TaskSplit {
  std::string name;                       // "train", "dev_matched"
  std::string file;                       // in the task's folder
  std::vector<std::string> columns = {};  // of a file without a header line; empty: it has one
  bool labelled = true;
};

struct Task {
  std::string name;         // "cola"
  std::string about;        // one line
  std::string folder = {};  // of GLUE's directory, "CoLA"
  std::string first, second = {}, label = {};
  std::vector<std::string> labels = {};  // as the files spell them, by class; empty: regression
  std::vector<Metric> metrics;
  std::vector<TaskSplit> splits;
  // Range of a regression's scores.
  double lowest = 0, highest = 0;
  // A text may contain a line break, so that a row continues in the next line (QQP as distributed).
  bool rows_span_lines = false;
  // Every row is a part of a long text, to be cut into passages of the model's length.
  bool passages = false;
  // Files of the user: first, second and label name what they have.
  bool user_files = false;
  std::string default_data = {};  // used when no directory is given
  TaskExamples (*read)(const Task& task, const Path& dir, const TaskSplit& split) = nullptr;
  // Makes the tokenizer of a model without weights; null: there is no usual one.
  std::unique_ptr<Tokenizer> (*tokenizer)() = nullptr;

  bool regression() const { return metrics.front() == Metric::pearson; }
  bool pairs() const { return !second.empty(); }
};

const std::vector<Task>& tasks();

// Throws an Error that lists the known ones.
const Task& task_named(const std::string& name);

// A split by its name, or by the name of a file in the task's folder (.tsv, of the task tsv .jsonl)
// that has the columns of the training split. Throws an Error that lists the known splits.
TaskSplit split_named(const Task& task, const std::string& name);

// The development splits: MNLI has two.
std::vector<TaskSplit> dev_splits_of(const Task& task);

// Reads a split from GLUE's directory or from the task's folder in it. Every malformed row is
// an Error "FILE:LINE: reason".
TaskExamples read_task(const Task& task, const Path& dir, const TaskSplit& split);

// The labels by class of a task; for books they are derived from its texts, for files of the user
// that do not have them of a model from the split; none for a regression.
std::vector<std::string> labels_of(const Task& task, const Path& dir, const TaskSplit& split);

// The class of a label as the task spells it. In files of the user also whatever its case, or by
// its number where no label is one.
std::optional<int64_t> class_of(const Task& task, std::string_view label);
// A label without the differences that spellings of one name have: lower case, with underscores.
std::string plain_label(std::string name);
// Each once, whole numbers by their value, others by their bytes.
void sort_labels(std::vector<std::string>& labels);
bool is_blank(std::string_view text);

// The texts of a .jsonl file or else of a TSV file, by one or two fields as read_rows() finds them.
struct TaskRow {
  std::string first, second = {}, label = {};
};
std::vector<TaskRow> read_texts(const Path& file, const std::vector<std::string>& fields);

}  // namespace brine::data
