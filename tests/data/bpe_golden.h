// Where the golden files of the tokenizer tests are, and how they are read.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "tests/messages.h"
#include "tests/paths.h"

namespace brine::test {

inline const std::string kTokenizerGolden = brine::test::source_dir() + "/tests/golden/tokenizer/";
// Development data (WikiText-2, GLUE, books, tokenizers), where the environment variable
// BRINE_TEST_DATA names its folder; cases that need it skip without it.
inline const std::string kSharedData = [] {
  const char* folder = std::getenv("BRINE_TEST_DATA");
  return std::string(folder && *folder ? folder : "/nonexistent") + "/";
}();

inline nlohmann::json golden_json(const std::string& name) {
  std::ifstream file(kTokenizerGolden + name);
  return nlohmann::json::parse(file);
}

// The ids of a text with those around it, as `tokenizers` gives them.
inline std::vector<int32_t> framed(const data::Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids = tokenizer.around().front;
  const std::vector<int32_t> inside = tokenizer.encode(text);
  for (const auto* more : {&inside, &tokenizer.around().back})
    ids.insert(ids.end(), more->begin(), more->end());
  return ids;
}

inline void write_text(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

// The message of an error has the part.
inline void has(const std::string& message, const char* part) {
  CHECK_MESSAGE(contains(message, part), message);
}

}  // namespace brine::test
