// The project's source files as text, for the rules of this folder.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/paths.h"

namespace brine::tests {

struct Source {
  std::string path;  // from the project's root: "tensor/cpu/dense/norm.cpp"
  std::vector<std::string> lines;

  std::string folder() const { return path.substr(0, path.find('/')); }
};

using Complaints = std::vector<std::string>;

inline const std::vector<std::string>& folders() {
  static const std::vector<std::string> all = {"tensor", "autograd", "nn",   "sea",
                                               "data",   "distill",  "apps", "tests"};
  return all;
}

inline Source source_of(const std::string& path, const std::string& text) {
  Source s{path, {}};
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) s.lines.push_back(line);
  return s;
}

// Every C++ and CUDA file of the folders, by path.
inline std::vector<Source> sources() {
  namespace fs = std::filesystem;
  std::vector<Source> out;
  for (const std::string& folder : folders()) {
    for (const auto& entry :
         fs::recursive_directory_iterator(fs::path(brine::test::source_dir()) / folder)) {
      std::string end = entry.path().extension().string();
      if (end != ".h" && end != ".cpp" && end != ".cu" && end != ".cuh" && end != ".inc") continue;
      std::ifstream in(entry.path(), std::ios::binary);
      std::ostringstream text;
      text << in.rdbuf();
      out.push_back(
          source_of(fs::relative(entry.path(), brine::test::source_dir()).string(), text.str()));
    }
  }
  std::sort(out.begin(), out.end(), [](auto& a, auto& b) { return a.path < b.path; });
  return out;
}

// The part of a line before a `//` comment, string contents blanked.
inline std::string code_of(const std::string& line) {
  std::string out;
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    char c = line[i];
    if (quote) {
      if (c == '\\') {
        ++i;
      } else if (c == quote) {
        quote = 0;
        out += c;
      }
      continue;
    }
    if (c == '/' && i + 1 < line.size() && line[i + 1] == '/') break;
    bool separates_digits = c == '\'' && i > 0 && std::isalnum((unsigned char)line[i - 1]);
    if (c == '"' || (c == '\'' && !separates_digits)) quote = c;
    out += c;
  }
  return out;
}

inline std::string location(const Source& s, size_t line) {
  return s.path + ":" + std::to_string(line + 1);
}

// Applies a rule to every source of the project.
template <class Rule>
void hold(Rule rule) {
  std::vector<Source> all = sources();
  CHECK(all.size() > 100);  // the tree was found
  for (const Source& s : all) {
    for (const std::string& complaint : rule(s)) FAIL_CHECK(complaint);
  }
}

}  // namespace brine::tests
