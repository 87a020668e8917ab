// UTF-8 validation, and the lookup of character classes.
#include "data/unicode/unicode.h"

#include <algorithm>
#include <array>
#include <cstring>

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

// One byte for each character of the first plane, where nearly all text lies.
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

// Length of the well-formed sequence at `p` with `left` bytes behind it, 0 if there is none.
size_t sequence_length(const uint8_t* p, size_t left) {
  auto follows = [&](size_t i, uint8_t low = 0x80, uint8_t high = 0xbf) {
    return i < left && p[i] >= low && p[i] <= high;
  };
  uint8_t lead = p[0];
  if (lead < 0x80) return 1;
  if (lead < 0xc2) return 0;
  if (lead < 0xe0) return follows(1) ? 2 : 0;
  if (lead < 0xf0) {
    // e0 80..9f would be overlong, ed a0..bf a surrogate.
    bool second = follows(1, lead == 0xe0 ? 0xa0 : 0x80, lead == 0xed ? 0x9f : 0xbf);
    return second && follows(2) ? 3 : 0;
  }
  if (lead > 0xf4) return 0;
  bool second = follows(1, lead == 0xf0 ? 0x90 : 0x80, lead == 0xf4 ? 0x8f : 0xbf);
  return second && follows(2) && follows(3) ? 4 : 0;
}

}  // namespace

CharClass char_class(uint32_t c) {
  static const std::array<CharClass, kPlane> table = first_plane();
  if (c < kPlane) return table[c];
  if (in_ranges(kLetterRanges, c)) return CharClass::kLetter;
  return in_ranges(kNumberRanges, c) ? CharClass::kNumber : CharClass::kOther;
}

size_t find_invalid_utf8(std::string_view text) {
  auto bytes = reinterpret_cast<const uint8_t*>(text.data());
  for (size_t at = 0; at < text.size();) {
    uint64_t word;
    if (at + 8 <= text.size()) {
      std::memcpy(&word, bytes + at, 8);
      if ((word & 0x8080808080808080u) == 0) {
        at += 8;
        continue;
      }
    }
    size_t length = sequence_length(bytes + at, text.size() - at);
    if (length == 0) return at;
    at += length;
  }
  return kValidUtf8;
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
