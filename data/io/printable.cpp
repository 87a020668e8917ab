// Escaping of control characters, so that a message stays on one line.
#include "data/io/printable.h"

namespace brine::data {

std::string shown(std::string_view text) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string out;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool control = byte < 0x20 || byte == 0x7f;
    if (control) {
      out.append("\\x").append(1, kDigits[byte >> 4]).append(1, kDigits[byte & 15]);
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace brine::data
