// Quantised maps.
#include "apps/report/pack.h"

#include <algorithm>
#include <cmath>

#include "data/codec/packed_text.h"

namespace brine::report {
namespace {

using distill::CellMap;
using distill::Picture;

constexpr size_t kJsonOfHead = 64;  // bytes of a head's layer, number and marks in the JSON
constexpr const char* kNames[distill::kPictures] = {"teacher", "estimate", "mask", "student"};

// Pairs of a query of the cell and a key that it sees.
int64_t visible_pairs(const distill::Blocks& tokens, int64_t r, int64_t c, bool causal) {
  if (!causal) return tokens.size(r) * tokens.size(c);
  int64_t pairs = 0;
  for (int64_t t = tokens.begin(r); t < tokens.begin(r + 1); ++t)
    pairs += std::clamp<int64_t>(t + 1 - tokens.begin(c), 0, tokens.size(c));
  return pairs;
}

// The bytes of a map; that of the mask has the share of the visible pairs.
std::string bytes_of(const CellMap& map, bool shares, bool causal) {
  std::string out;
  for (int64_t r = 0; r < map.tokens().cells(); ++r) {
    for (int64_t c = 0; c < map.tokens().cells(); ++c) {
      const auto pairs = double(shares ? visible_pairs(map.tokens(), r, c, causal) : 0);
      out += char(!shares ? byte_of_mass(map.mass(r, c))
                  : pairs ? byte_of_share(map.sum(r, c) / pairs)
                          : 0);
    }
  }
  return out;
}

std::string packed(const distill::HeadMaps& head, bool causal) {
  std::string bytes;
  for (size_t i = 0; i < distill::kPictures; ++i) {
    if (head.maps[i].empty()) continue;
    std::string plane = bytes_of(head.maps[i], Picture(i) == Picture::mask, causal);
    // Differences deflate better: neighbouring queries read a key alike.
    const auto row = size_t(head.maps[i].tokens().cells());
    for (size_t at = plane.size(); at-- > row;) plane[at] = char(plane[at] - plane[at - row]);
    bytes += plane;
  }
  return data::base64(data::deflated(bytes));
}

}  // namespace

uint8_t byte_of_mass(double mass) {
  if (!(mass >= kMinMass)) return 0;
  const double position = 1 - std::log10(mass) / std::log10(kMinMass);
  return uint8_t(1 + std::lround(254 * std::min(1.0, position)));
}

uint8_t byte_of_share(double share) {
  return uint8_t(std::lround(255 * std::clamp(share, 0.0, 1.0)));
}

std::vector<std::string> plane_names(const distill::TextMaps& maps) {
  std::vector<std::string> out;
  for (size_t i = 0; i < distill::kPictures && !maps.heads.empty(); ++i) {
    if (!maps.heads[0].maps[i].empty()) out.push_back(kNames[i]);
  }
  return out;
}

PackedHeads pack_heads(const distill::TextMaps& maps, size_t bytes) {
  PackedHeads out{.maps = maps, .heads = {}};
  while (true) {
    out.heads.clear();
    size_t taken = 0;
    for (const distill::HeadMaps& head : out.maps.heads) {
      out.heads.push_back(packed(head, out.maps.causal));
      taken += out.heads.back().size() + kJsonOfHead;
    }
    const int64_t cells = distill::coarser_cells(maps.tokens, out.maps.cells);
    if (taken <= bytes || cells == 0) return out;
    out.maps = out.maps.coarser(cells);
  }
}

}  // namespace brine::report
