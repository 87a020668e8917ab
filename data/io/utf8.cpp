// UTF-8 validation by utf8proc; runs of ASCII are skipped eight bytes at a time. Text as error
// messages show it.
#include "data/io/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "data/io/file_io.h"
#include "tensor/base/error.h"

namespace brine::data {

size_t find_invalid_utf8(std::string_view text) {
  auto bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  for (size_t at = 0; at < text.size();) {
    uint64_t word;
    if (at + 8 <= text.size()) {
      std::memcpy(&word, bytes + at, 8);
      if ((word & 0x8080808080808080u) == 0) {
        at += 8;
        continue;
      }
    }
    utf8proc_int32_t code = 0;
    const auto length = utf8proc_iterate(bytes + at, utf8proc_ssize_t(text.size() - at), &code);
    if (length <= 0) return at;
    at += size_t(length);
  }
  return kValidUtf8;
}

void refuse_malformed(const std::string& name, std::string_view text, uint64_t offset) {
  const size_t at = find_invalid_utf8(text);
  if (at == kValidUtf8) return;
  const auto byte = uint8_t(text[at]);
  const std::string digits = {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
  throw Error(join(name, ": not UTF-8 at byte offset ", offset + at, " (0x", digits, ")"),
              ErrorKind::format);
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    parts.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

std::string_view take_part(std::string_view& text, char separator) {
  const std::string_view part = text.substr(0, text.find(separator));
  text.remove_prefix(std::min(part.size() + 1, text.size()));
  return part;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t at = 0;
  for (size_t next = 0; (next = text.find(from, at)) != std::string_view::npos;) {
    out.append(text, at, next - at).append(to);
    at = next + from.size();
  }
  return out.append(text, at);
}

std::string read_text(const std::string& path) {
  std::string text = read_file(path);
  refuse_packed(path, std::string_view(text).substr(0, kPackedHead));
  refuse_malformed(path, text);
  text.erase(0, text.size() - without_mark(text).size());
  check_format(!text.empty(), path, ": the file contains no text");
  return text;
}

namespace {

void append_escaped(std::string& out, std::string_view bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out.append("\\x").append(1, kDigits[byte >> 4]).append(1, kDigits[byte & 15]);
  }
}

// Bytes of the control or separator of lines at the start of well-formed text; 0: it is neither.
size_t control_bytes(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (at(0) < 0x20 || at(0) == 0x7f) return 1;
  if (at(0) == 0xc2 && at(1) < 0xa0) return 2;                                       // C1
  if (at(0) == 0xe2 && at(1) == 0x80 && (at(2) == 0xa8 || at(2) == 0xa9)) return 3;  // U+2028, 2029
  return 0;
}

}  // namespace

std::string shown(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t valid = std::min(find_invalid_utf8(text), text.size());
    for (size_t i = 0; i < valid;) {
      const size_t control = control_bytes(text.substr(i, valid - i));
      if (control) append_escaped(out, text.substr(i, control));
      if (!control) out += text[i];
      i += std::max<size_t>(control, 1);
    }
    if (valid < text.size()) append_escaped(out, text.substr(valid, 1));
    text.remove_prefix(std::min(valid + 1, text.size()));
  }
  return out;
}

}  // namespace brine::data
