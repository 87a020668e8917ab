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

using Ids = std::vector<int32_t>;

// The ids of a text with those around it, as `tokenizers` gives them.
inline Ids framed(const data::Tokenizer& tokenizer, std::string_view text) {
  Ids ids = tokenizer.around().front;
  const Ids inside = tokenizer.encode(text);
  for (const auto* more : {&inside, &tokenizer.around().back})
    ids.insert(ids.end(), more->begin(), more->end());
  return ids;
}

// Checks one row of a golden file; the number of its tokens.
inline size_t check_row(const data::Tokenizer& tokenizer, const nlohmann::json& row) {
  const auto text = row["first"].get<std::string>();
  CAPTURE(text);
  const Ids got = framed(tokenizer, text);
  CHECK(got == row["ids"].get<Ids>());
  return got.size();
}

inline void write_text(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

// The message of an error has the part.
inline void has(const std::string& message, const char* part) {
  CHECK_MESSAGE(contains(message, part), message);
}

}  // namespace brine::test
