// PNG: three chunks around a zlib stream of filtered rows.
#include "data/codec/png.h"

#include <zlib.h>

#include <string_view>

#include "data/codec/packed_text.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

constexpr char kUp = 2;  // a row as its differences from the one above: maps are smooth

std::string big_endian(uint32_t value) {
  return {char(value >> 24), char(value >> 16), char(value >> 8), char(value)};
}

std::string chunk(std::string_view type, std::string_view content) {
  std::string typed(type);
  typed += content;
  const uLong crc = crc32(0, reinterpret_cast<const Bytef*>(typed.data()), uInt(typed.size()));
  return big_endian(uint32_t(content.size())) + typed + big_endian(uint32_t(crc));
}

std::string filtered(const Picture& picture) {
  std::string out;
  out.reserve(size_t(picture.height * (3 * picture.width + 1)));
  for (int64_t y = 0; y < picture.height; ++y) {
    out += kUp;
    for (int64_t x = 0; x < picture.width; ++x) {
      const Colour above = y > 0 ? picture.at(x, y - 1) : Colour{}, pixel = picture.at(x, y);
      out += char(pixel.red - above.red);
      out += char(pixel.green - above.green);
      out += char(pixel.blue - above.blue);
    }
  }
  return out;
}

}  // namespace

std::string png(const Picture& picture) {
  constexpr int64_t kMost = 1 << 16;
  check(picture.width > 0 && picture.height > 0 && picture.width < kMost && picture.height < kMost,
        "png: a picture of ", picture.width, " x ", picture.height, " pixels");
  const std::string kind = {8, 2, 0, 0, 0};  // 8 bits, red green blue, no interlacing
  return "\x89PNG\r\n\x1a\n" +
         chunk("IHDR",
               big_endian(uint32_t(picture.width)) + big_endian(uint32_t(picture.height)) + kind) +
         chunk("IDAT", deflated(filtered(picture))) + chunk("IEND", "");
}

}  // namespace brine::data
