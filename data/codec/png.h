// Pictures as PNG files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace brine::data {

struct Colour {
  uint8_t red = 0, green = 0, blue = 0;
  bool operator==(const Colour&) const = default;
};

// Pixels by rows, from the top left.
struct Picture {
  int64_t width = 0, height = 0;
  std::vector<Colour> pixels;

  Picture(int64_t width, int64_t height, Colour fill = {})
      : width(width), height(height), pixels(size_t(width * height), fill) {}
  Colour& at(int64_t x, int64_t y) { return pixels[size_t(y * width + x)]; }
  const Colour& at(int64_t x, int64_t y) const { return pixels[size_t(y * width + x)]; }
};

// The bytes of a PNG file with 8 bits for each of red, green and blue. Throws for an empty picture.
std::string png(const Picture& picture);

}  // namespace brine::data
