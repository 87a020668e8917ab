// The lookup of character classes, and characters written as UTF-8.
#include "data/unicode/unicode.h"

#include <algorithm>
#include <array>

#include "data/unicode/unicode_ranges.h"

namespace brine::data {
namespace {

constexpr uint32_t kPlane = 0x10000;

template <size_t N>
bool in_ranges(const CharRange (&ranges)[N], uint32_t c) {
  auto after = std::upper_bound(ranges, ranges + N, c,
                                [](uint32_t value, const CharRange& r) { return value < r.first; });
  return after != ranges && c <= after[-1].last;
}

// One byte for each character of the first plane, which has nearly all text.
std::array<CharClass, kPlane> first_plane() {
  std::array<CharClass, kPlane> table{};
  auto mark = [&](const auto& ranges, CharClass value) {
    for (CharRange r : ranges)
      for (uint32_t c = r.first; c <= r.last && c < kPlane; ++c) table[c] = value;
  };
  mark(kLetterRanges, CharClass::kLetter);
  mark(kNumberRanges, CharClass::kNumber);
  mark(kSpaceRanges, CharClass::kSpace);
  return table;
}

}  // namespace

CharClass char_class(uint32_t c) {
  static const std::array<CharClass, kPlane> table = first_plane();
  if (c < kPlane) return table[c];
  if (in_ranges(kLetterRanges, c)) return CharClass::kLetter;
  return in_ranges(kNumberRanges, c) ? CharClass::kNumber : CharClass::kOther;
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
