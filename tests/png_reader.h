// Reading PNG files in tests: 8 bits for each of red, green, blue and perhaps opacity.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "tensor/base/error.h"

namespace brine::test {

struct Colour {
  uint8_t red = 0, green = 0, blue = 0;
};

// Pixels by rows, from the top left.
struct Picture {
  int64_t width = 0, height = 0;
  std::vector<Colour> pixels;

  Picture(int64_t width, int64_t height)
      : width(width), height(height), pixels(size_t(width * height)) {}
  Colour& at(int64_t x, int64_t y) { return pixels[size_t(y * width + x)]; }
  const Colour& at(int64_t x, int64_t y) const { return pixels[size_t(y * width + x)]; }
};

// The byte that Paeth's filter predicts (PNG, section 9.4).
inline int paeth(int left, int up, int corner) {
  const int p = left + up - corner;
  const int a = std::abs(p - left), b = std::abs(p - up), c = std::abs(p - corner);
  return a <= b && a <= c ? left : b <= c ? up : corner;
}

// Checks the checksum of every chunk. Throws for other kinds of PNG.
inline Picture read_png(const std::string& file) {
  auto number = [&](size_t at) {
    uint32_t x = 0;
    for (size_t i = 0; i < 4; ++i) x = x << 8 | uint8_t(file.at(at + i));
    return x;
  };
  check(file.rfind("\x89PNG\r\n\x1a\n", 0) == 0, "png: no signature");
  std::string packed;
  for (size_t at = 8; at < file.size(); at += 12 + number(at)) {
    const std::string typed = file.substr(at + 4, 4 + number(at));
    const uLong crc = crc32(0, reinterpret_cast<const Bytef*>(typed.data()), uInt(typed.size()));
    check(number(at + 8 + number(at)) == crc, "png: a damaged chunk");
    if (typed.rfind("IDAT", 0) == 0) packed += typed.substr(4);
  }
  const int64_t width = number(16), height = number(20), channels = file.at(25) == 2 ? 3 : 4;
  check(file.at(24) == 8 && (file.at(25) == 2 || file.at(25) == 6), "png: of another kind");
  std::string rows(size_t(height * (channels * width + 1)), '\0');
  uLongf size = uLongf(rows.size());
  const int status =
      uncompress(reinterpret_cast<Bytef*>(rows.data()), &size,
                 reinterpret_cast<const Bytef*>(packed.data()), uLong(packed.size()));
  check(status == Z_OK && size == rows.size(), "png: ", size, " bytes, wanted ", rows.size());
  Picture out(width, height);
  const int64_t stride = channels * width + 1;
  for (int64_t y = 0; y < height; ++y) {
    const char filter = rows[size_t(y * stride)];
    for (int64_t i = 0; i < channels * width; ++i) {
      auto byte = [&](int64_t row, int64_t column) {
        return row < 0 || column < 0 ? 0 : int(uint8_t(rows[size_t(row * stride + 1 + column)]));
      };
      const int left = byte(y, i - channels), up = byte(y - 1, i),
                corner = byte(y - 1, i - channels);
      const int guess[] = {0, left, up, (left + up) / 2,
                           paeth(left, up, i < channels ? 0 : corner)};
      rows[size_t(y * stride + 1 + i)] = char(byte(y, i) + guess[int(filter)]);
    }
    for (int64_t x = 0; x < width; ++x) {
      const char* at = &rows[size_t(y * stride + 1 + channels * x)];
      out.at(x, y) = {uint8_t(at[0]), uint8_t(at[1]), uint8_t(at[2])};
    }
  }
  return out;
}

}  // namespace brine::test
