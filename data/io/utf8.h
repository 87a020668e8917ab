// Text in UTF-8: the check that it is well-formed, text files, parts of text, and text in messages.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace brine::data {

inline constexpr size_t kValidUtf8 = std::string_view::npos;

// The offset of the first byte that does not start a well-formed UTF-8 sequence (overlong forms,
// surrogates and values above 0x10ffff are malformed), or kValidUtf8.
size_t find_invalid_utf8(std::string_view text);

// What some files of UTF-8 text begin with, not a part of the text.
inline constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// The text of a file that may begin with the mark. Whatever reads text files calls it.
inline std::string_view without_mark(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return text;
}

// Throws for malformed text, with the byte and its offset in the file `name`; that of the text is
// `offset`.
void refuse_malformed(const std::string& name, std::string_view text, uint64_t offset = 0);

// The parts between separators, one more than there are of them.
std::vector<std::string> split(std::string_view text, char separator);

// Takes the part before the next separator, and the separator, from the start of a text that is not
// empty; the whole text if it has none.
std::string_view take_part(std::string_view& text, char separator);

// The names of some items in a message, "a, b, c".
template <class Items>
std::string names_of(const Items& items) {
  std::string list;
  for (const auto& item : items) list.append(list.empty() ? "" : ", ").append(item.name);
  return list;
}

// Sets `value` to the number that the whole text is; false if it is none.
template <class Number>
bool parse_number(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// The text with `to` for each `from`, which is not empty.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

inline bool is_utf8(std::string_view text) { return find_invalid_utf8(text) == kValidUtf8; }

// The text at `path` without a leading byte order mark. A missing or empty file and invalid UTF-8
// are errors; the latter names the offset of the first invalid byte.
std::string read_text(const std::string& path);

// The text with the bytes of control characters and line breaks (also U+0080 to U+009f, U+2028 and
// U+2029) and those that are not UTF-8 as "\x0a".
std::string shown(std::string_view text);

}  // namespace brine::data
