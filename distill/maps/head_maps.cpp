// Maps of the heads of a layer, row by row.
#include "distill/maps/head_maps.h"

#include <algorithm>

namespace brine::distill {
namespace {

constexpr int64_t kTile = 64;          // rows of the teacher's attention at a time
constexpr int64_t kLargestSide = 384;  // of a picture
constexpr int64_t kSideStep = 16;      // of sides, so that they can be halved

}  // namespace

void MapCollector::add(int64_t layer, const LayerView& view) {
  maps_.tokens = view.tokens();
  maps_.cells = std::min(maps_.tokens, request_.cells);
  maps_.causal = view.causal;
  if (!request_.layers.empty() && !request_.layers.count(layer)) return;
  for (int64_t h = 0; h < view.heads(); ++h) {
    if (!request_.heads.empty() && !request_.heads.count(h)) continue;
    maps_.heads.push_back({.layer = layer, .head = h});
    add_head(maps_.heads.back(), view);
  }
}

void MapCollector::add_head(HeadMaps& maps, const LayerView& view) const {
  const int64_t T = view.tokens();
  const CellMap none{Blocks(T, maps_.cells)};
  maps[Picture::teacher] = none;
  if (view.columns()) maps[Picture::estimate] = none;
  if (view.has_mask()) maps[Picture::mask] = maps[Picture::student] = none;
  std::vector<KeyMass> columns;
  std::vector<KeptKey> kept;
  for (int64_t first = 0; first < T; first += kTile) {
    const int64_t count = std::min(kTile, T - first);
    const Tensor tile = teacher_tile(view, maps.head, first, count);
    for (int64_t t = first; t < first + count; ++t) {
      const float* row = tile.data<float>() + (t - first) * T;
      maps[Picture::teacher].add_row(t, row, view.keys_of(t));
      if (view.columns()) {
        widen_row(view, maps.head, t, columns);
        for (const KeyMass& each : columns)
          maps[Picture::estimate].add(t, each.first, each.behind, each.mass);
      }
      if (!view.has_mask()) continue;
      kept_keys(view, maps.head, t, kept);
      for (const KeptKey& each : kept) {
        maps[Picture::mask].add(t, each.key, each.key + 1, 1);
        maps[Picture::student].add(t, each.key, each.key + 1, each.mass);
      }
    }
  }
}

TextMaps TextMaps::coarser(int64_t wanted) const {
  TextMaps out{.tokens = tokens, .cells = wanted, .causal = causal};
  for (const HeadMaps& source : heads) {
    out.heads.push_back({.layer = source.layer, .head = source.head});
    for (size_t i = 0; i < kPictures; ++i) {
      if (!source.maps[i].empty())
        out.heads.back().maps[i] = source.maps[i].coarser(Blocks(tokens, wanted));
    }
  }
  return out;
}

int64_t cells_at_most(int64_t tokens, int64_t most) {
  const int64_t side = std::clamp<int64_t>(most, 1, kLargestSide);
  if (tokens <= side) return tokens;
  return side < kSideStep ? side : side - side % kSideStep;
}

int64_t coarser_cells(int64_t tokens, int64_t cells) {
  if (cells == 1) return 0;
  if (cells == tokens) return cells_at_most(tokens, tokens / 2);  // single tokens make any cells
  return cells % 2 == 0 ? cells / 2 : 0;
}

}  // namespace brine::distill
