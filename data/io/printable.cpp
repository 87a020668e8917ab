// Escaping of what a terminal obeys or a line breaks at, so that a message stays on one line.
#include "data/io/printable.h"

#include <algorithm>

#include "data/io/utf8.h"

namespace brine::data {
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
