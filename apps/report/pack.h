// Maps as bytes of a page: one byte for each cell, deflated, in base64. apps/report/page/data.js
// reads them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/report/attention.h"

namespace brine::report {

// The place of a mass on the logarithmic scale of maps, which page/data.js has too: 0 at and below
// kLeastMass, 1 at 1.
inline constexpr double kLeastMass = 1e-5;
double place_of_mass(double mass);

// A mass as a byte: 0 at and below kLeastMass, else 1 + 254 times its place on the logarithmic
// scale: a step is 4.6 %, so the error at most 2.3 %.
uint8_t byte_of_mass(double mass);
double mass_of_byte(uint8_t byte);
// A share in [0, 1] in 255 steps.
uint8_t byte_of_share(double share);

// Numbers in [0, 1] by byte_of_mass().
std::string packed_masses(const std::vector<float>& masses);

// Maps with their JSON: each head is {"planes": [[id, rows, columns, shares], ...], "bytes": base64
// of the deflated planes, one after another, as differences: a plane "X.most" from plane "X" before
// it, the others from the row above}.
struct PackedHeads {
  distill::TextMaps maps;
  std::vector<data::Json> heads;
};
// Coarser maps until the bytes of all heads, as the page has them, are at most `bytes`.
PackedHeads pack_heads(const distill::TextMaps& maps, size_t bytes);

}  // namespace brine::report
