// Running the program as a process, and files for it to read.
#pragma once

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tensor/base/error.h"
#include "tests/messages.h"
#include "tests/paths.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

namespace brine::tests {

using test::check_says;
using test::contains;
using test::message;
using test::Scratch;

inline std::string read_all(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

struct Finished {
  int status = -1;  // of exit(); -1 when a signal ended it
  std::string out, error;
};

// `brine ARGUMENTS` by a shell; its output goes to `target` when that is given.
inline Finished run_brine(const std::string& arguments, const std::string& target = "") {
  Scratch scratch;
  std::string out = (scratch / "out").string(), error = (scratch / "error").string();
  std::string program = brine::test::binary_dir() + "/brine";
  REQUIRE_MESSAGE(std::filesystem::exists(program), program, " is missing: build all targets");
  int code = std::system(
      (program + " " + arguments + " >" + (target.empty() ? out : target) + " 2>" + error).c_str());
  return {WIFEXITED(code) ? WEXITSTATUS(code) : -1, read_all(out), read_all(error)};
}

// How often `part` is in `text`.
inline size_t occurrences(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// The one line of a command that was refused.
inline std::string refusal_in(const Finished& f) {
  INFO(f.out, f.error);
  CHECK(f.status == 1);
  CHECK(occurrences(f.error, "\n") == 1);
  return f.error;
}

// A command was refused with an error that says so.
inline void check_refusal(const Finished& f, std::initializer_list<std::string> parts) {
  CHECK(f.status == 1);
  check_says(f.error, parts);
}

}  // namespace brine::tests
