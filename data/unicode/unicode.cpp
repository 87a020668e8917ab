// The lookup of character classes, and characters written as UTF-8.
#include "data/unicode/unicode.h"

#include <array>
#include <iterator>
#include <numeric>

#include "data/unicode/unicode_ranges.h"

namespace brine::data {
namespace {

// The last letter is after the last number and the last space.
constexpr uint32_t kClassEnd = std::accumulate(std::begin(kLetterRuns), std::end(kLetterRuns), 0u);

std::array<CharClass, kClassEnd> classes() {
  std::array<CharClass, kClassEnd> table{};
  auto mark = [&](std::span<const uint32_t> runs, CharClass value) {
    each_char(runs, [&](uint32_t c) { table.at(c) = value; });
  };
  mark(kLetterRuns, CharClass::kLetter);
  mark(kNumberRuns, CharClass::kNumber);
  mark(kSpaceRuns, CharClass::kSpace);
  return table;
}

}  // namespace

CharClass char_class(uint32_t c) {
  static const std::array<CharClass, kClassEnd> table = classes();
  return c < kClassEnd ? table[c] : CharClass::kOther;
}

void append_utf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += char(c);
  } else if (c < 0x800) {
    out += char(0xc0 | c >> 6);
    out += char(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    out += char(0xe0 | c >> 12);
    out += char(0x80 | (c >> 6 & 0x3f));
    out += char(0x80 | (c & 0x3f));
  } else {
    out += char(0xf0 | c >> 18);
    out += char(0x80 | (c >> 12 & 0x3f));
    out += char(0x80 | (c >> 6 & 0x3f));
    out += char(0x80 | (c & 0x3f));
  }
}

}  // namespace brine::data
