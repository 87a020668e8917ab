// A directory of a test's own, removed at the end.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "tensor/error.h"

namespace brine::test {

class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "brine-test-XXXXXX").string();
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

 private:
  std::filesystem::path path_;
};

}  // namespace brine::test
