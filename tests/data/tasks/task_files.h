// Small files in the formats that GLUE distributes.
#pragma once

#include <filesystem>
#include <string>

#include "data/tasks/task.h"
#include "tests/data/bpe_golden.h"

namespace brine::test {

// Writes DIR/FOLDER/FILE and makes the folder.
inline std::string write_task_file(const std::filesystem::path& dir, const std::string& folder,
                                   const std::string& file, const std::string& content) {
  std::filesystem::create_directories(dir / folder);
  std::string path = (dir / folder / file).string();
  write_text(path, content);
  return path;
}

inline data::TaskExamples read_split(const std::string& task, const std::filesystem::path& dir,
                                     const std::string& split) {
  const data::Task& t = data::task_named(task);
  return data::read_task(t, dir, data::split_named(t, split));
}

}  // namespace brine::test
