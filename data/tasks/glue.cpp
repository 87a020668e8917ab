// The reader of GLUE's files: columns by name, labels in words.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "data/tasks/task_readers.h"
#include "data/tasks/tsv.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

// Field text as a number; the whole text must be used.
template <class Number>
bool parse(std::string_view text, Number& value) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

std::string list_of(const std::vector<std::string>& labels) {
  std::string list;
  for (const std::string& label : labels) list += (list.empty() ? "'" : ", '") + label + "'";
  return list;
}

double target_of(const Task& task, const TsvReader& row, std::string_view text) {
  if (task.regression()) {
    double score = NAN;
    bool number = parse(text, score) && std::isfinite(score);
    row.check_row(number, "score '", text, "' is not a number");
    row.check_row(score >= task.lowest && score <= task.highest, "score ", text, " is not in [",
                  task.lowest, ", ", task.highest, "]");
    return score;
  }
  auto found = std::find(task.labels.begin(), task.labels.end(), text);
  row.check_row(found != task.labels.end(), "label '", text, "' is not one of ",
                list_of(task.labels));
  return double(found - task.labels.begin());
}

}  // namespace

TaskExamples read_glue(const Task& task, const Path& dir, const TaskSplit& split) {
  Path folder = std::filesystem::is_directory(dir / task.folder) ? dir / task.folder : dir;
  check_found(folder != dir || std::filesystem::exists(dir / split.file), dir.string(),
              ": contains neither ", task.folder, "/", split.file, " nor ", split.file);
  TsvReader row(folder / split.file, split.columns, task.rows_span_lines);
  TaskExamples out{.labels = task.labels, .rows = {}, .labelled = split.labelled};
  size_t first = row.column(task.first);
  size_t second = task.pairs() ? row.column(task.second) : 0;
  size_t label = split.labelled ? row.column(task.label) : 0;
  while (row.next()) {
    TaskExample e{.first = std::string(row[first])};
    if (task.pairs()) e.second = row[second];
    if (split.labelled) e.target = target_of(task, row, row[label]);
    out.rows.push_back(std::move(e));
  }
  return out;
}

}  // namespace brine::data
