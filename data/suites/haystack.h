// The text in which a needle is hidden: repeated sentences without meaning, or a book.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/suites/draws.h"

namespace brine::data {

// A text at a place of the haystack: 0 = before its first unit, n = after its last.
struct Needle {
  size_t place = 0;
  std::string text;
};

class Haystack {
 public:
  // Units are lines of five sentences, which are those of RULER's "noise" and of the passkey task
  // of landmark attention (Mohtashami and Jaggi, 2023).
  Haystack();
  // Units are the sentences of the text, with single spaces. Throws when it has none; `name` starts
  // the message.
  Haystack(std::string_view text, const std::string& name);

  // n units with the needles between them; a book starts at a drawn sentence and, after its last,
  // at its first.
  std::string with(std::vector<Needle> needles, size_t n, Draws& draws) const;
  // The place in n units at a depth in percent.
  static size_t place(int64_t depth, size_t n) { return (size_t(depth) * n + 50) / 100; }

 private:
  std::vector<std::string> units_;
  char between_;
};

// The five sentences.
extern const char* const kNoise;

}  // namespace brine::data
