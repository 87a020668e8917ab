// The reader of tasks in rows: TSV files, as GLUE has them, and JSON lines.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "data/io/json.h"
#include "data/io/utf8.h"
#include "data/tasks/task_readers.h"
#include "data/tasks/tsv.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

using Row = TaskRow;
using Location = std::function<std::string()>;  // "FILE:LINE"
using Take = std::function<void(Row&& row, const Location& where)>;

bool is_whole(const std::string& text) {
  int64_t value = 0;
  return parse_number(text, value);
}

std::string list_of(const std::vector<std::string>& labels) {
  std::string list;
  for (const std::string& label : labels) list += (list.empty() ? "'" : ", '") + label + "'";
  return list;
}

// Columns by number are those of a file without a header line.
bool by_number(const Task& task) {
  return task.user_files && is_whole(task.first) && (!task.pairs() || is_whole(task.second)) &&
         (task.label.empty() || is_whole(task.label));
}

void each_tsv_row(const Path& file, const Task& task, const TaskSplit& split, const Take& take) {
  TsvReader row(file, split.columns, task.rows_span_lines, !by_number(task));
  auto column = [&](const std::string& name) {
    return row.column(name, task.user_files
                                ? "; --fields names them, or counts them from 1 in a file "
                                  "without a header line"
                                : "");
  };
  const bool labelled = split.labelled && !task.label.empty();
  const size_t first = column(task.first);
  const size_t second = task.pairs() ? column(task.second) : 0;
  const size_t label = labelled ? column(task.label) : 0;
  const Location where = [&row] { return row.where(); };
  while (row.next()) {
    Row out{.first = std::string(row[first])};
    if (task.pairs()) out.second = row[second];
    if (labelled) out.label = row[label];
    take(std::move(out), where);
  }
}

void each_json_row(const Path& file, const Task& task, const TaskSplit& split, const Take& take) {
  const std::string name = file.string(), text = read_text(name);
  int64_t number = 0;
  const Location where = [&] { return join(name, ":", number); };
  for (std::string_view rest = text; !rest.empty();) {
    ++number;
    const Json row = parse_json_or_discard(take_part(rest, '\n'), where());
    check_format(row.is_object(), where(), ": is not a JSON object");
    auto value = [&](const std::string& key, bool text_only) {
      const auto found = row.find(key);
      check_format(found != row.end(), where(), ": has no key '", key, "' (--fields)");
      if (found->is_string()) return found->get<std::string>();
      check_format(!text_only && (found->is_number() || found->is_boolean()), where(), ": '", key,
                   "' is ", json_text(*found), ", wanted a text", text_only ? "" : " or a number");
      return json_text(*found);
    };
    Row out{.first = value(task.first, true)};
    if (task.pairs()) out.second = value(task.second, true);
    if (split.labelled && !task.label.empty()) out.label = value(task.label, false);
    take(std::move(out), where);
  }
}

void each_row(const Path& file, const Task& task, const TaskSplit& split, const Take& take) {
  (file.extension() == ".jsonl" ? each_json_row : each_tsv_row)(
      file, task, split, [&](Row&& row, const Location& where) {
        check_format(!task.user_files || !is_blank(row.first), where(), ": the text is empty");
        check_format(!task.user_files || !task.pairs() || !is_blank(row.second), where(),
                     ": the second text is empty");
        check_format(row.label.find_first_of("\t\r\n") == std::string::npos, where(),
                     ": the label has a tab or a line break");
        take(std::move(row), where);
      });
}

double target_of(const Task& task, std::string_view text, const Location& where) {
  if (task.regression()) {
    double score = NAN;
    check_format(parse_number(text, score) && std::isfinite(score), where(), ": score '", text,
                 "' is not a number");
    check_format(score >= task.lowest && score <= task.highest, where(), ": score ", text,
                 " is not in [", task.lowest, ", ", task.highest, "]");
    return score;
  }
  const std::optional<int64_t> found = class_of(task, text);
  check_format(found.has_value(), where(), ": label '", text, "' is not one of ",
               list_of(task.labels), task.user_files ? " (--labels says which is which)" : "");
  return double(*found);
}

// The labels of a file whose task knows none yet, one for each of its rows.
void take_labels(const std::vector<std::string>& found, const Path& file, bool numbered,
                 TaskExamples& out) {
  check_format(
      !numbered || found.size() < 3 || std::count(found.begin(), found.end(), found[0]) > 1,
      file.string(), ":1: no other row has the label '", found[0],
      "'; name the columns (--fields) if this is a header line");
  out.labels = found;
  sort_labels(out.labels);
  check_format(out.labels.size() >= 2, file.string(), ": one label, ", list_of(out.labels),
               ", but classification needs two; --regression learns numbers");
  for (size_t i = 0; i < found.size(); ++i)
    out.rows[i].target =
        double(std::find(out.labels.begin(), out.labels.end(), found[i]) - out.labels.begin());
}

Path file_of(const Task& task, const Path& dir, const TaskSplit& split) {
  if (!task.user_files) {
    Path folder = std::filesystem::is_directory(dir / task.folder) ? dir / task.folder : dir;
    check_found(folder != dir || std::filesystem::exists(dir / split.file), dir.string(),
                ": contains neither ", task.folder, "/", split.file, " nor ", split.file);
    return folder / split.file;
  }
  check_found(std::filesystem::is_directory(dir), dir.string(),
              ": is not a directory; --data names that of the files, --split FILE.tsv one of them");
  if (!split.file.empty()) return dir / split.file;
  std::vector<std::string> names = {split.name}, found;
  if (split.name == "dev") names = {"dev", "valid", "validation"};
  for (const std::string& name : names) {
    for (const char* kind : {".tsv", ".jsonl"}) {
      if (std::filesystem::exists(dir / (name + kind))) found.push_back(name + kind);
    }
  }
  check_found(!found.empty(), dir.string(), ": contains no ", split.name, ".tsv or ", split.name,
              ".jsonl", names.size() > 1 ? ", nor one called valid or validation" : "");
  check(found.size() == 1, dir.string(), ": contains ", found[0], " and ", found.back(),
        ", which are both the split ", split.name);
  return dir / found[0];
}

}  // namespace

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos;
}

std::string plain_label(std::string name) {
  for (char& c : name)
    c = c == '-' || c == ' ' ? '_' : char(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

void sort_labels(std::vector<std::string>& labels) {
  const bool numbers = std::all_of(labels.begin(), labels.end(), is_whole);
  std::sort(labels.begin(), labels.end(), [&](const std::string& a, const std::string& b) {
    int64_t x = 0, y = 0;
    return numbers && parse_number(a, x) && parse_number(b, y) && x != y ? x < y : a < b;
  });
  labels.erase(std::unique(labels.begin(), labels.end()), labels.end());
}

std::optional<int64_t> class_of(const Task& task, std::string_view text) {
  const std::vector<std::string>& labels = task.labels;
  auto number = [&](auto&& same) -> std::optional<int64_t> {
    const auto found = std::find_if(labels.begin(), labels.end(), same);
    if (found == labels.end()) return {};
    return found - labels.begin();
  };
  std::optional<int64_t> exact = number([&](const std::string& label) { return label == text; });
  if (exact || !task.user_files) return exact;
  const std::string plain = plain_label(std::string(text));
  exact = number([&](const std::string& label) { return plain_label(label) == plain; });
  int64_t id = 0;
  if (exact || !parse_number(text, id) || id < 0 || id >= int64_t(labels.size())) return exact;
  if (std::any_of(labels.begin(), labels.end(), is_whole)) return {};
  return id;
}

TaskExamples read_rows(const Task& task, const Path& dir, const TaskSplit& split) {
  TaskExamples out{.labels = task.labels, .rows = {}, .labelled = split.labelled};
  const bool open = task.labels.empty() && !task.regression();
  std::vector<std::string> found;
  const Path file = file_of(task, dir, split);
  each_row(file, task, split, [&](Row&& row, const Location& where) {
    TaskExample e{.first = std::move(row.first), .second = std::move(row.second)};
    if (open) {
      check_format(!is_blank(row.label), where(), ": the label is empty");
      found.push_back(std::move(row.label));
    } else if (split.labelled) {
      e.target = target_of(task, row.label, where);
    }
    out.rows.push_back(std::move(e));
  });
  if (open && !found.empty()) take_labels(found, file, by_number(task), out);
  return out;
}

std::vector<TaskRow> read_texts(const Path& file, const std::vector<std::string>& fields) {
  Task task{.name = "tsv", .about = {}, .first = fields.at(0), .metrics = {}, .splits = {}};
  if (fields.size() > 1) task.second = fields[1];
  task.user_files = true;
  std::vector<TaskRow> out;
  each_row(file, task, {.name = {}, .file = {}, .labelled = false},
           [&](Row&& row, const Location&) { out.push_back(std::move(row)); });
  return out;
}

}  // namespace brine::data
