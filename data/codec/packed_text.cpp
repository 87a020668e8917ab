// Deflating by zlib, and base64.
#include "data/codec/packed_text.h"

#include <zlib.h>

#include <cstdint>

#include "tensor/base/error.h"

namespace brine::data {

std::string deflated(std::string_view bytes) {
  uLongf size = compressBound(uLong(bytes.size()));
  std::string out(size, '\0');
  const int status =
      compress2(reinterpret_cast<Bytef*>(out.data()), &size,
                reinterpret_cast<const Bytef*>(bytes.data()), uLong(bytes.size()), 9);
  check(status == Z_OK, "deflate: zlib cannot compress ", bytes.size(), " bytes (", status, ")");
  out.resize(size);
  return out;
}

std::string base64(std::string_view bytes) {
  static constexpr char kLetters[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t three = 0;
    for (size_t i = 0; i < 3; ++i) {
      three = three << 8 | (at + i < bytes.size() ? uint8_t(bytes[at + i]) : 0u);
    }
    for (size_t i = 0; i < 4; ++i) {
      out += i <= bytes.size() - at ? kLetters[three >> (18 - 6 * i) & 63] : '=';
    }
  }
  return out;
}

}  // namespace brine::data
