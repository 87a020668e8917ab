// The reader of Long Range Arena's ListOps.
#include <algorithm>

#include "data/tasks/lra/listops.h"
#include "data/tasks/task_readers.h"
#include "data/tasks/tsv.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

// The expression's tokens with single spaces between them, without round brackets.
std::string plain(std::string_view source) {
  std::string out;
  for (size_t at = 0; at < source.size();) {
    const size_t end = std::min(source.find(' ', at), source.size());
    const std::string_view word = source.substr(at, end - at);
    at = end + 1;
    if (word.empty() || word == "(" || word == ")") continue;
    if (!out.empty()) out += ' ';
    out += word;
  }
  return out;
}

void check_value(const TsvReader& row, const std::string& expression, double target) {
  int64_t value = 0;
  try {
    value = listops_value(expression);
  } catch (const Error& e) {
    row.check_row(false, e.what());
  }
  row.check_row(double(value) == target, "Target is ", target, ", but the expression's value is ",
                value);
}

}  // namespace

TaskExamples read_listops(const Task& task, const Path& dir, const TaskSplit& split) {
  TsvReader row(dir / split.file);
  TaskExamples out{.labels = task.labels, .rows = {}};
  const size_t source = row.column(task.first), target = row.column(task.label);
  while (row.next()) {
    const auto label = std::ranges::find(task.labels, row[target]);
    row.check_row(label != task.labels.end(), "Target '", row[target], "' is not a digit");
    TaskExample e{.first = plain(row[source]), .target = double(label - task.labels.begin())};
    check_value(row, e.first, e.target);
    out.rows.push_back(std::move(e));
  }
  return out;
}

}  // namespace brine::data
