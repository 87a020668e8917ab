// UTF-8 validation by utf8proc; runs of ASCII are skipped eight bytes at a time.
#include "data/io/utf8.h"

#include <utf8proc.h>

#include <cstdint>
#include <cstring>

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

}  // namespace brine::data
