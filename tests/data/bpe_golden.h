// Where the golden files of the tokenizer tests are, and how they are read.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/paths.h"

namespace brine::test {

inline const std::string kTokenizerGolden = brine::test::source_dir() + "/tests/golden/tokenizer/";
// Development data; tests that need it skip without it.
inline const std::string kSharedData = brine::test::source_dir() + "/../shared/data/";

inline nlohmann::json golden_json(const std::string& name) {
  std::ifstream file(kTokenizerGolden + name);
  return nlohmann::json::parse(file);
}

inline void write_text(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

}  // namespace brine::test
