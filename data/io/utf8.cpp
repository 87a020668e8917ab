// UTF-8 validation by utf8proc; runs of ASCII are skipped eight bytes at a time.
#include "data/io/utf8.h"

#include <utf8proc.h>

#include <cstdint>
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

namespace {

void refuse_malformed(const std::string& path, const std::string& text) {
  const size_t at = find_invalid_utf8(text);
  if (at == kValidUtf8) return;
  const auto byte = uint8_t(text[at]);
  const std::string digits = {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
  throw Error(join(path, ": not UTF-8 at byte offset ", at, " (0x", digits, ")"),
              ErrorKind::format);
}

}  // namespace

std::string read_text(const std::string& path) {
  std::string text = read_file(path);
  refuse_packed(path, std::string_view(text).substr(0, kPackedHead));
  refuse_malformed(path, text);
  text.erase(0, text.size() - without_mark(text).size());
  check_format(!text.empty(), path, ": the file contains no text");
  return text;
}

}  // namespace brine::data
