// Maps as bytes of a page: one byte for each cell, deflated, in base64. apps/report/page/data.js
// reads them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/report/attention.h"

namespace brine::report {

// A mass as a byte: 0 at and below figure::kLeastMass, else 1 + 254 times its place on the
// logarithmic scale: a step is 4.6 %, so the error at most 2.3 %.
uint8_t byte_of_mass(double mass);
double mass_of_byte(uint8_t byte);
// A share in [0, 1] in 255 steps.
uint8_t byte_of_share(double share);

// One picture of a head.
struct Plane {
  std::string id;  // "teacher", "teacher.most", "estimate", "selected", "widened", "widened.most",
                   // "mask", "student", "student.most"
  int64_t rows = 0, columns = 0;
  bool shares = false;  // linear from 0 to 1, else masses
  std::vector<uint8_t> bytes;
};

// The planes of a head; ".most", the largest entry of each cell, only where cells are averaged.
// "mask" and "selected" are shares of the visible entries.
std::vector<Plane> planes_of(const distill::HeadMaps& maps, bool causal);

// {"planes": [[id, rows, columns, shares], ...], "bytes": base64 of the deflated planes, one
// after another, as differences: a plane "X.most" from plane "X" before it, the others from the row
// above}.
data::Json packed(const std::vector<Plane>& planes);
// Numbers in [0, 1] by byte_of_mass().
std::string packed_masses(const std::vector<float>& masses);

// Coarser maps until the bytes of all heads, as the page has them, are at most `bytes`.
struct PackedHeads {
  distill::TextMaps maps;
  std::vector<data::Json> heads;
  size_t bytes = 0;
};
PackedHeads pack_heads(const distill::TextMaps& maps, size_t bytes);

}  // namespace brine::report
