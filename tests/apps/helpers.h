// Running the program as a process, and files for it to read.
#pragma once

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tensor/error.h"

namespace brine::tests {

// A directory that is removed with everything in it.
struct ScratchDirectory {
  std::filesystem::path path;
  ScratchDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "brine_XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path / name, std::ios::binary) << text;
    return (path / name).string();
  }
};

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
  ScratchDirectory scratch;
  std::string out = (scratch.path / "out").string(), error = (scratch.path / "error").string();
  std::string program = BRINE_BINARY_DIR "/brine";
  REQUIRE_MESSAGE(std::filesystem::exists(program), program, " is missing: build all targets");
  int code = std::system(
      (program + " " + arguments + " >" + (target.empty() ? out : target) + " 2>" + error).c_str());
  return {WIFEXITED(code) ? WEXITSTATUS(code) : -1, read_all(out), read_all(error)};
}

template <class F>
std::string message(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace brine::tests
