// Colours of lines that readers with any colour vision can distinguish, and the scale of maps.
#pragma once

#include <cstddef>
#include <string>

namespace brine::figure {

// Okabe and Ito's colours for lines, "#0072b2"; they repeat after eight, with other dashes.
std::string line_colour(size_t number);
std::string line_dash(size_t number);  // of stroke-dasharray, "" for the first eight

// The place of a mass on the logarithmic scale of maps, which page/data.js has too: 0 at and below
// kLeastMass, 1 at 1.
inline constexpr double kLeastMass = 1e-5;
double place_of_mass(double mass);

}  // namespace brine::figure
