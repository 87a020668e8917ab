// Palettes, and the scale of maps.
#include "apps/figure/colours.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace brine::figure {
namespace {

constexpr const char* kLines[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                  "#e69f00", "#56b4e9", "#000000", "#8c6d1f"};
constexpr const char* kDashes[] = {"", "7 3", "2 3", "9 3 2 3"};
}  // namespace

std::string line_colour(size_t number) { return kLines[number % std::size(kLines)]; }

std::string line_dash(size_t number) {
  return kDashes[number / std::size(kLines) % std::size(kDashes)];
}

double place_of_mass(double mass) {
  if (mass <= kLeastMass) return 0;
  return std::min(1.0, 1 - std::log10(mass) / std::log10(kLeastMass));
}

}  // namespace brine::figure
