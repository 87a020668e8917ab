// The lookup of character classes, and characters written as UTF-8.
#include "data/unicode/unicode.h"

#include <utf8proc.h>

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
  utf8proc_uint8_t bytes[4];
  const auto size = utf8proc_encode_char(utf8proc_int32_t(c), bytes);
  out.append(reinterpret_cast<const char*>(bytes), size_t(size));
}

}  // namespace brine::data
