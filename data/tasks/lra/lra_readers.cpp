// Readers of the tasks of Long Range Arena: expressions, images as numbers.
#include <algorithm>

#include "data/tasks/lra/listops.h"
#include "data/tasks/lra/pathfinder.h"
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

// Records of a class and an image.
struct ImageFile {
  ImageFile(const Path& path, int64_t classes) : path(path), file(path), classes(classes) {
    check_format(file.size() > 0 && file.size() % kBytes == 0, path.string(), ": ", file.size(),
                 " bytes are not a number of records of ", kBytes, " bytes");
  }
  int64_t size() const { return int64_t(file.size() / kBytes); }

  TaskExample read(int64_t i) const {
    const unsigned char* record = file.data() + uint64_t(i) * kBytes;
    check_format(record[0] < classes, path.string(), ": record ", i, ": class ", int(record[0]),
                 " is not below ", classes);
    TaskExample out{.first = {}, .target = double(record[0])};
    out.first.reserve(size_t(4 * kImagePixels));
    for (int64_t p = 0; p < kImagePixels; ++p) {
      if (p) out.first += ' ';
      out.first += std::to_string(record[1 + p]);
    }
    return out;
  }

  static constexpr uint64_t kBytes = 1 + kImagePixels;
  Path path;
  MappedFile file;
  int64_t classes;
};

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

TaskExamples read_pathfinder(const Task& task, const Path& dir, const TaskSplit& split) {
  TaskExamples out{.labels = task.labels, .rows = {}};
  const ImageFile images(dir / split.file, int64_t(task.labels.size()));
  for (int64_t i = 0; i < images.size(); ++i) out.rows.push_back(images.read(i));
  return out;
}

}  // namespace brine::data
