// A temporary directory of one test, removed at the end; in memory where the system has that,
// because many tests write thousands of small files.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tensor/base/error.h"

namespace brine::test {

class Scratch {
 public:
  Scratch() {
    bool in_memory = ::access("/dev/shm", W_OK | X_OK) == 0;
    std::filesystem::path parent = in_memory ? "/dev/shm" : std::filesystem::temp_directory_path();
    std::string name = (parent / "brine-test-XXXXXX").string();
    check(::mkdtemp(name.data()) != nullptr, name, ": cannot create");
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  // A file of this content; returns its path.
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

}  // namespace brine::test
