// Quantised maps.
#include "apps/report/pack.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "data/codec/packed_text.h"

namespace brine::report {
namespace {

using distill::CellMap;

enum class Value { mass, largest };

constexpr size_t kKeysOfHead = 48;  // bytes of a head's layer and number in the JSON

// One picture of a head.
struct Plane {
  std::string id;  // "teacher", "teacher.most", "estimate", "selected", "widened", "widened.most",
                   // "mask", "student", "student.most"
  int64_t rows = 0, columns = 0;
  bool shares = false;  // linear from 0 to 1, else masses
  std::vector<uint8_t> bytes;
};

Plane plane_of_masses(const std::string& id, const CellMap& map, Value value) {
  Plane out{.id = id, .rows = map.rows().cells(), .columns = map.columns().cells(), .bytes = {}};
  for (int64_t r = 0; r < out.rows; ++r) {
    for (int64_t c = 0; c < out.columns; ++c)
      out.bytes.push_back(byte_of_mass(value == Value::mass ? map.mass(r, c) : map.most(r, c)));
  }
  return out;
}

// Entries of a cell that exist: pairs of a query and a key that it sees, or a column.
int64_t visible_pairs(const CellMap& map, int64_t r, int64_t c, bool causal) {
  const distill::Blocks &rows = map.rows(), &columns = map.columns();
  if (!causal) return rows.size(r) * columns.size(c);
  int64_t pairs = 0;
  for (int64_t t = rows.begin(r); t < rows.begin(r + 1); ++t)
    pairs += std::clamp<int64_t>(t + 1 - columns.begin(c), 0, columns.size(c));
  return pairs;
}

// `by_key`: the columns are keys, of which a causal row sees a part.
Plane plane_of_shares(const std::string& id, const CellMap& map, bool by_key, bool causal) {
  Plane out{.id = id,
            .rows = map.rows().cells(),
            .columns = map.columns().cells(),
            .shares = true,
            .bytes = {}};
  for (int64_t r = 0; r < out.rows; ++r) {
    for (int64_t c = 0; c < out.columns; ++c) {
      const int64_t pairs = visible_pairs(map, r, c, by_key && causal);
      out.bytes.push_back(pairs ? byte_of_share(map.sum(r, c) / double(pairs)) : uint8_t(0));
    }
  }
  return out;
}

// The planes of a head; ".most", the largest entry of each cell, only where cells are averaged.
// "mask" and "selected" are shares of the visible entries.
std::vector<Plane> planes_of(const distill::HeadMaps& maps, bool causal) {
  std::vector<Plane> out;
  auto add = [&](const std::string& id, const CellMap& map) {
    if (map.empty()) return;
    out.push_back(plane_of_masses(id, map, Value::mass));
    if (map.averaged()) out.push_back(plane_of_masses(id + ".most", map, Value::largest));
  };
  add("teacher", maps.teacher);
  if (!maps.estimate.empty())
    out.push_back(plane_of_masses("estimate", maps.estimate, Value::mass));
  if (!maps.selected.empty())
    out.push_back(plane_of_shares("selected", maps.selected, false, causal));
  add("widened", maps.widened);
  if (!maps.mask.empty()) out.push_back(plane_of_shares("mask", maps.mask, true, causal));
  add("student", maps.student);
  return out;
}

data::Json packed(const std::vector<Plane>& planes) {
  data::Json list = data::Json::array();
  std::string bytes;
  for (size_t p = 0; p < planes.size(); ++p) {
    const Plane& plane = planes[p];
    list.push_back({plane.id, plane.rows, plane.columns, int(plane.shares)});
    // Differences deflate better: a key is read by neighbouring queries alike, and the largest
    // entry of a cell grows with its mass.
    const bool of_before = plane.id.ends_with(".most");
    for (size_t i = 0; i < plane.bytes.size(); ++i) {
      const auto row = size_t(plane.columns);
      const uint8_t from = of_before ? planes[p - 1].bytes[i]
                           : i < row ? uint8_t(0)
                                     : plane.bytes[i - row];
      bytes += char(uint8_t(plane.bytes[i] - from));
    }
  }
  return {{"planes", list}, {"bytes", data::base64(data::deflated(bytes))}};
}

}  // namespace

double place_of_mass(double mass) {
  if (mass <= kLeastMass) return 0;
  return std::min(1.0, 1 - std::log10(mass) / std::log10(kLeastMass));
}

uint8_t byte_of_mass(double mass) {
  if (!(mass >= kLeastMass)) return 0;
  return uint8_t(1 + std::lround(254 * place_of_mass(mass)));
}

double mass_of_byte(uint8_t byte) {
  return byte == 0 ? 0 : std::pow(kLeastMass, 1 - (byte - 1) / 254.0);
}

uint8_t byte_of_share(double share) {
  return uint8_t(std::lround(255 * std::clamp(share, 0.0, 1.0)));
}

std::string packed_masses(const std::vector<float>& masses) {
  std::string bytes;
  for (const float mass : masses) bytes += char(byte_of_mass(mass));
  return data::base64(data::deflated(bytes));
}

PackedHeads pack_heads(const distill::TextMaps& maps, size_t bytes) {
  PackedHeads out;
  out.maps = maps;
  while (true) {
    out.heads.clear();
    size_t taken = 0;
    for (const distill::HeadMaps& head : out.maps.heads) {
      out.heads.push_back(packed(planes_of(head, out.maps.causal)));
      taken += out.heads.back().dump().size() + kKeysOfHead;
    }
    const int64_t cells = distill::coarser_cells(maps.tokens, maps.cells, out.maps.cells);
    if (taken <= bytes || cells == 0) return out;
    out.maps = maps.coarser(cells);
  }
}

}  // namespace brine::report
