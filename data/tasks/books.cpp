// The task books: passages of books, labelled by their titles.
#include <algorithm>
#include <filesystem>

#include "data/io/utf8.h"
#include "data/tasks/task_readers.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

constexpr std::string_view kEndOfText = "<|endoftext|>", kTitle = "# Title: ", kRule = "-----";
constexpr int64_t kStretches = 20, kDev = 7, kTest = 14;

struct Book {
  std::string title;
  std::string_view text;
};

size_t line_end(std::string_view text, size_t at) {
  size_t end = text.find('\n', at);
  return end == std::string_view::npos ? text.size() : end + 1;
}

// Where the line that ends the first book starts; npos without one.
size_t book_end(std::string_view text) {
  size_t at = text.find(kEndOfText);
  while (at != std::string_view::npos && at > 0 && text[at - 1] != '\n')
    at = text.find(kEndOfText, at + 1);
  return at;
}

// A book's heading has its name in the first line and ends with a rule of dashes. Without one the
// book has the name of its file.
Book book_of(std::string_view text, const std::string& name) {
  if (!text.starts_with(kTitle)) return {.title = name, .text = text};
  size_t end = line_end(text, 0);
  std::string title(text.substr(kTitle.size(), end - kTitle.size()));
  while (!title.empty() && (title.back() == '\n' || title.back() == '\r')) title.pop_back();
  check_format(!title.empty(), name, ": a book's title is empty");
  size_t body = end;
  for (size_t at = end, lines = 0; at < text.size() && lines < 20; at = line_end(text, at)) {
    if (text.substr(at).starts_with(kRule)) {
      body = line_end(text, at);
      break;
    }
    ++lines;
  }
  return {.title = title, .text = text.substr(body)};
}

std::vector<Path> files_of(const Path& dir) {
  if (!std::filesystem::is_directory(dir)) return {dir};
  std::vector<Path> files;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  }
  check_format(!files.empty(), dir.string(), ": no *.txt there");
  std::sort(files.begin(), files.end());
  return files;
}

std::string split_of(int64_t stretch) {
  return stretch == kDev ? "dev" : stretch == kTest ? "test" : "train";
}

void add_book(const Book& book, const std::string& split, TaskExamples& out) {
  size_t from = 0;
  for (int64_t i = 0; i < kStretches; ++i) {
    size_t to = book.text.size() * size_t(i + 1) / size_t(kStretches);
    // Up to the end of the line that contains the cut.
    to = to > from ? line_end(book.text, to - 1) : from;
    if (split_of(i) == split && to > from) {
      out.rows.push_back({.first = std::string(book.text.substr(from, to - from)),
                          .target = double(out.labels.size() - 1)});
    }
    from = to;
  }
}

}  // namespace

TaskExamples read_books(const Task&, const Path& dir, const TaskSplit& split) {
  TaskExamples out;
  for (const Path& file : files_of(dir)) {
    std::string text = read_text(file.string());
    std::string_view rest = text;
    for (int number = 1; !rest.empty(); ++number) {
      size_t end = book_end(rest);
      std::string name = file.stem().string();
      if (number > 1 || end != std::string_view::npos) name += join(" ", number);
      Book book = book_of(rest.substr(0, end), name);
      rest = end == std::string_view::npos ? std::string_view() : rest.substr(line_end(rest, end));
      check_format(std::find(out.labels.begin(), out.labels.end(), book.title) == out.labels.end(),
                   file.string(), ": a second book '", book.title, "'");
      out.labels.push_back(book.title);
      add_book(book, split.name, out);
    }
  }
  check_format(out.labels.size() >= 2, dir.string(), ": ", out.labels.size(),
               " book, but classification needs at least two");
  return out;
}

}  // namespace brine::data
