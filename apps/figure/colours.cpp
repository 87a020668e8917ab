// Palettes.
#include "apps/figure/colours.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>

namespace brine::figure {
namespace {

constexpr const char* kLines[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                  "#e69f00", "#56b4e9", "#000000", "#8c6d1f"};
constexpr const char* kDashes[] = {"", "7 3", "2 3", "9 3 2 3"};
// Viridis at multiples of 1/8 (matplotlib; public domain).
constexpr data::Colour kMap[] = {{68, 1, 84},    {71, 44, 122},  {59, 81, 139},
                                 {44, 113, 142}, {33, 144, 141}, {39, 173, 129},
                                 {92, 200, 99},  {170, 220, 50}, {253, 231, 37}};

uint8_t between(uint8_t a, uint8_t b, double share) {
  return uint8_t(std::lround(double(a) + (double(b) - double(a)) * share));
}

}  // namespace

std::string line_colour(size_t number) { return kLines[number % std::size(kLines)]; }

std::string line_dash(size_t number) {
  return kDashes[number / std::size(kLines) % std::size(kDashes)];
}

data::Colour map_colour(double value) {
  const double at = std::clamp(value, 0.0, 1.0) * double(std::size(kMap) - 1);
  const size_t low = std::min(size_t(at), std::size(kMap) - 2);
  const double share = at - double(low);
  const data::Colour a = kMap[low], b = kMap[low + 1];
  return {between(a.red, b.red, share), between(a.green, b.green, share),
          between(a.blue, b.blue, share)};
}

std::string hex(data::Colour colour) {
  char text[8];
  std::snprintf(text, sizeof text, "#%02x%02x%02x", colour.red, colour.green, colour.blue);
  return text;
}

double place_of_mass(double mass) {
  if (mass <= kLeastMass) return 0;
  return std::min(1.0, 1 - std::log10(mass) / std::log10(kLeastMass));
}

}  // namespace brine::figure
