// How long files and lines may be, how many files a folder has, and how a file begins.
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/architecture/sources.h"

namespace brine::tests {
namespace {

constexpr size_t kLongestFile = 600, kLongestCommand = 60, kLongestLine = 100;

// Characters of a UTF-8 line.
size_t width(const std::string& line) {
  return size_t(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

Complaints too_long(const Source& s) {
  Complaints out;
  // A command is wiring: what a run is belongs below the command line.
  const size_t limit = s.path.rfind("apps/commands/", 0) == 0 ? kLongestCommand : kLongestFile;
  if (s.lines.size() > limit) {
    out.push_back(s.path + ": " + std::to_string(s.lines.size()) + " lines, at most " +
                  std::to_string(limit));
  }
  for (size_t i = 0; i < s.lines.size(); ++i) {
    if (width(s.lines[i]) > kLongestLine) {
      out.push_back(location(s, i) + ": " + std::to_string(width(s.lines[i])) +
                    " columns, at most 100");
    }
  }
  return out;
}

Complaints bad_beginning(const Source& s) {
  if (s.lines.empty()) return {s.path + ": empty"};
  const std::string& first = s.lines[0];
  if (first.rfind("// ", 0) != 0)
    return {s.path + ": does not say on its first line what it is for"};
  if (s.path.substr(s.path.size() - 2) != ".h") return {};
  bool once = std::find(s.lines.begin(), s.lines.end(), "#pragma once") != s.lines.end();
  return once ? Complaints{} : Complaints{s.path + ": has no #pragma once"};
}

TEST_CASE("no file over 600 lines, no command over 60, no line over 100 columns") {
  hold(too_long);
}

// A folder with many files is a flat list that is hard to search.
constexpr size_t kLargestFolder = 20;

std::map<std::string, size_t> folder_sizes() {
  std::map<std::string, size_t> out;
  for (const Source& s : sources()) ++out[s.path.substr(0, s.path.rfind('/'))];
  return out;
}

TEST_CASE("no folder has more than 20 sources at one level") {
  for (const auto& [folder, count] : folder_sizes()) {
    INFO(folder);
    CHECK(count <= kLargestFolder);
  }
}

TEST_CASE("the front page has at most 90 lines of 100 columns, 700 words") {
  std::ifstream readme(brine::test::source_dir() + "/README.md");
  size_t lines = 0, words = 0;
  for (std::string line; std::getline(readme, line); ++lines) {
    CHECK_MESSAGE(line.size() <= 100, line);
    std::istringstream in(line);
    for (std::string word; in >> word;) ++words;
  }
  CHECK(lines > 50);
  CHECK(lines <= 90);
  CHECK(words <= 700);
}

TEST_CASE("pages have lines of at most 100 columns, but for tables") {
  namespace fs = std::filesystem;
  const fs::path root = brine::test::source_dir();
  std::vector<fs::path> pages;
  for (const auto& entry : fs::directory_iterator(root)) pages.push_back(entry.path());
  for (const std::string folder :
       {"apps", "autograd", "configs", "data", "distill", "docs", "nn", "sea", "tensor", "tests"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      pages.push_back(entry.path());
    }
  }
  std::erase_if(pages, [](const fs::path& page) { return page.extension() != ".md"; });
  CHECK(pages.size() > 20);
  for (const fs::path& path : pages) {
    std::ifstream page(path);
    for (std::string line; std::getline(page, line);) {
      const bool table = line.rfind("|", 0) == 0;
      CHECK_MESSAGE((table || width(line) <= kLongestLine), path.string(), ": ", line);
    }
  }
}

TEST_CASE("every source says on its first line what it is for") { hold(bad_beginning); }

TEST_CASE("half of the files have at most 150 lines") {
  std::vector<size_t> sizes;
  for (const Source& s : sources()) sizes.push_back(s.lines.size());
  std::sort(sizes.begin(), sizes.end());
  CHECK(sizes[sizes.size() / 2] <= 150);
}

TEST_CASE("the rules of sizes detect a violation") {
  std::string text = "// A file.\n";
  for (int i = 0; i < 600; ++i) text += "\n";
  CHECK(too_long(source_of("nn/a.cpp", text)).size() == 1);
  const std::string command = text.substr(0, text.size() - 540);  // 61 lines
  CHECK(too_long(source_of("apps/commands/a.cpp", command)).size() == 1);
  CHECK(too_long(source_of("apps/cli/a.cpp", command)).empty());
  CHECK(too_long(source_of("apps/commands/a.cpp", command.substr(0, command.size() - 1))).empty());
  CHECK(too_long(source_of("nn/a.cpp", std::string(101, 'x'))).size() == 1);
  CHECK(too_long(source_of("nn/a.cpp", std::string(100, 'x'))).empty());
  std::string accents;
  for (int i = 0; i < 100; ++i) accents += "\xc3\xa9";  // 100 characters, 200 bytes
  CHECK(too_long(source_of("nn/a.cpp", accents)).empty());
  CHECK(bad_beginning(source_of("nn/a.cpp", "#include <map>")).size() == 1);
  CHECK(bad_beginning(source_of("nn/a.h", "// A header.")).size() == 1);
  CHECK(bad_beginning(source_of("nn/a.h", "// A header.\n#pragma once")).empty());
}

}  // namespace
}  // namespace brine::tests
