// Maps as bytes of a page: one byte for each cell, deflated, in base64. apps/report/page/data.js
// reads them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "distill/maps/head_maps.h"

namespace brine::report {

// The logarithmic scale of maps, which page/data.js has too: 0 at and below kMinMass, 1 at 1.
inline constexpr double kMinMass = 1e-5;
// A mass as a byte: 0 at and below kMinMass, else 1 + 254 times its position on the scale: a step
// is 4.6 %, so the error at most 2.3 %.
uint8_t byte_of_mass(double mass);
// A share in [0, 1] in 255 steps.
uint8_t byte_of_share(double share);

// The names of the maps that the method has, in the order of their bytes.
std::vector<std::string> plane_names(const distill::TextMaps& maps);

// Maps and for each head the base64 of its deflated planes, one after another, each as differences
// from the row above.
struct PackedHeads {
  distill::TextMaps maps;
  std::vector<std::string> heads;
};
// Coarser maps until all heads have at most `bytes` bytes.
PackedHeads pack_heads(const distill::TextMaps& maps, size_t bytes);

}  // namespace brine::report
