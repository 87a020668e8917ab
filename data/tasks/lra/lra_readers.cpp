// Readers of the tasks of Long Range Arena: expressions, reviews, images as numbers.
#include <algorithm>
#include <filesystem>

#include "data/io/utf8.h"
#include "data/tasks/lra/listops.h"
#include "data/tasks/lra/pathfinder.h"
#include "data/tasks/task_readers.h"
#include "data/tasks/tsv.h"
#include "tensor/error.h"

namespace brine::data {
namespace {

namespace fs = std::filesystem;

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

constexpr uint64_t kLongestReview = 1 << 20;

void add_reviews(const Path& dir, double target, TaskExamples& out) {
  std::error_code error;
  check_found(fs::is_directory(dir, error), dir.string(), ": no such directory");
  std::vector<Path> files;
  for (fs::directory_iterator entry(dir, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".txt") files.push_back(entry->path());
  }
  check(!error, dir.string(), ": cannot read: ", error.message());
  check_format(!files.empty(), dir.string(), ": contains no *.txt");
  std::ranges::sort(files);
  for (const Path& file : files) {
    std::string text = read_file(file, kLongestReview);
    const size_t bad = find_invalid_utf8(text);
    check_format(bad == kValidUtf8, file.string(), ": not UTF-8 at byte offset ", bad);
    out.rows.push_back({.first = std::string(without_mark(text)),
                        .target = target,
                        .index = int64_t(out.rows.size())});
  }
}

// Records of a class and `channels` planes of pixels.
struct ImageFile {
  ImageFile(const Path& path, int64_t channels, int64_t classes)
      : path(path), file(path), channels(channels), classes(classes) {
    check_format(file.size() > 0 && file.size() % bytes() == 0, path.string(), ": ", file.size(),
                 " bytes are not a number of records of ", bytes(), " bytes");
  }
  uint64_t bytes() const { return uint64_t(1 + channels * kImagePixels); }
  int64_t size() const { return int64_t(file.size() / bytes()); }

  TaskExample read(int64_t i) const {
    const unsigned char* record = file.data() + uint64_t(i) * bytes();
    check_format(record[0] < classes, path.string(), ": record ", i, ": class ", int(record[0]),
                 " is not below ", classes);
    TaskExample out{.first = {}, .target = double(record[0])};
    out.first.reserve(size_t(4 * kImagePixels));
    for (int64_t p = 0; p < kImagePixels; ++p) {
      if (p) out.first += ' ';
      out.first += std::to_string(gray(record + 1 + p));
    }
    return out;
  }

  // The luma of ITU-R BT.601, rounded.
  int gray(const unsigned char* pixel) const {
    if (channels == 1) return pixel[0];
    const int weighted = 299 * pixel[0] + 587 * pixel[kImagePixels] + 114 * pixel[2 * kImagePixels];
    return (weighted + 500) / 1000;
  }

  Path path;
  MappedFile file;
  int64_t channels, classes;
};

// Appends the records [from, to).
void add_images(const ImageFile& images, int64_t from, int64_t to, TaskExamples& out) {
  for (int64_t i = from; i < to; ++i) {
    out.rows.push_back(images.read(i));
    out.rows.back().index = int64_t(out.rows.size()) - 1;
  }
}

}  // namespace

TaskExamples read_listops(const Task& task, const Path& dir, const TaskSplit& split) {
  TsvReader row(dir / split.file);
  TaskExamples out{.labels = task.labels, .rows = {}};
  const size_t source = row.column(task.first), target = row.column(task.label);
  while (row.next()) {
    const auto label = std::ranges::find(task.labels, row[target]);
    row.check_row(label != task.labels.end(), "Target '", row[target], "' is not a digit");
    TaskExample e{.first = plain(row[source]),
                  .target = double(label - task.labels.begin()),
                  .index = int64_t(out.rows.size())};
    check_value(row, e.first, e.target);
    out.rows.push_back(std::move(e));
  }
  return out;
}

TaskExamples read_imdb(const Task& task, const Path& dir, const TaskSplit& split) {
  TaskExamples out{.labels = task.labels, .rows = {}};
  for (size_t label = 0; label < task.labels.size(); ++label) {
    add_reviews(dir / split.file / task.labels[label], double(label), out);
  }
  return out;
}

TaskExamples read_cifar10(const Task& task, const Path& dir, const TaskSplit& split) {
  TaskExamples out{.labels = task.labels, .rows = {}};
  const auto classes = int64_t(task.labels.size());
  if (split.name == "test") {
    const ImageFile images(dir / "test_batch.bin", 3, classes);
    add_images(images, 0, images.size(), out);
    return out;
  }
  for (int batch = 1; batch <= 5; ++batch) {
    const bool last = batch == 5;
    if (split.name == "dev" && !last) continue;
    const ImageFile images(dir / join("data_batch_", batch, ".bin"), 3, classes);
    const int64_t half = last ? images.size() / 2 : images.size();
    if (split.name == "train") add_images(images, 0, half, out);
    if (split.name == "dev") add_images(images, half, images.size(), out);
  }
  return out;
}

TaskExamples read_pathfinder(const Task& task, const Path& dir, const TaskSplit& split) {
  TaskExamples out{.labels = task.labels, .rows = {}};
  const ImageFile images(dir / split.file, 1, int64_t(task.labels.size()));
  add_images(images, 0, images.size(), out);
  return out;
}

}  // namespace brine::data
