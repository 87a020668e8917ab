// Characters of UTF-8 text, and their classes for pre-tokenisation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace brine::data {

enum class CharClass : uint8_t { kOther, kLetter, kNumber, kSpace };

// Unicode 16.0: categories L and N, property White_Space, and everything else (also invalid
// characters).
CharClass char_class(uint32_t c);

// Reads one character of valid UTF-8 text and advances `at` past it.
inline uint32_t next_char(std::string_view text, size_t& at) {
  auto byte = [&](size_t i) { return uint32_t(uint8_t(text[i])); };
  uint32_t lead = byte(at);
  if (lead < 0x80) return ++at, lead;
  if (lead < 0xe0) return at += 2, (lead & 0x1f) << 6 | (byte(at - 1) & 0x3f);
  if (lead < 0xf0)
    return at += 3, (lead & 0x0f) << 12 | (byte(at - 2) & 0x3f) << 6 | (byte(at - 1) & 0x3f);
  at += 4;
  return (lead & 0x07) << 18 | (byte(at - 3) & 0x3f) << 12 | (byte(at - 2) & 0x3f) << 6 |
         (byte(at - 1) & 0x3f);
}

// class_of() of the characters of ASCII.
template <auto class_of>
inline const auto kAsciiClasses = [] {
  std::array<decltype(class_of(0)), 128> table{};
  for (uint32_t c = 0; c < 128; ++c) table[c] = class_of(c);
  return table;
}();

// class_of(c) of the character c at `at`, which is advanced past it.
template <auto class_of>
auto next_class(std::string_view text, size_t& at) {
  const auto byte = uint8_t(text[at]);
  return byte < 128 ? (++at, kAsciiClasses<class_of>[byte]) : class_of(next_char(text, at));
}

void append_utf8(std::string& out, uint32_t c);

// Calls f(c) for every character c of a set: the lengths of the runs of characters outside, inside,
// outside... of it, from U+0000 on.
template <class F>
void each_char(std::span<const uint32_t> runs, F&& f) {
  uint32_t c = 0;
  for (size_t i = 0; i < runs.size(); c += runs[i++]) {
    for (uint32_t n = 0; i % 2 && n < runs[i]; ++n) f(c + n);
  }
}

}  // namespace brine::data
