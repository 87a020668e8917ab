// Colours that readers with any colour vision can distinguish: of lines, and of values in a map.
#pragma once

#include <cstddef>
#include <string>

#include "data/codec/png.h"

namespace brine::figure {

// Okabe and Ito's colours for lines, "#0072b2"; they repeat after eight, with other dashes.
std::string line_colour(size_t number);
std::string line_dash(size_t number);  // of stroke-dasharray, "" for the first eight

// Of a value in [0, 1]: viridis, whose brightness grows with the value, so that it can be read in
// grey.
data::Colour map_colour(double value);
std::string hex(data::Colour colour);  // "#21918c"

// The place of a mass on the logarithmic scale of maps, which page/data.js has too: 0 at and below
// kLeastMass, 1 at 1.
inline constexpr double kLeastMass = 1e-5;
double place_of_mass(double mass);

}  // namespace brine::figure
