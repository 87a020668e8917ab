// Maps of the heads of a layer, row by row.
#include "distill/maps/head_maps.h"

namespace brine::distill {
namespace {

constexpr int64_t kTile = 64;  // rows of the teacher's attention at a time
// Sides of pictures. Each divides the first, so that cells of one are made of whole cells of
// another.
constexpr int64_t kSides[] = {384, 192, 128, 96, 64, 48, 32, 24, 16, 8, 4, 2, 1};

// Cells of `items` rows or columns, made of whole ones of `cells` cells (items: of single ones),
// for a picture of at most `max_cells` cells.
int64_t cells_within(int64_t items, int64_t cells, int64_t max_cells) {
  if (cells <= max_cells) return cells;
  for (const int64_t side : kSides) {
    if (side <= max_cells && (cells == items || cells % side == 0)) return side;
  }
  return 1;
}

void add_estimate(HeadMaps& maps, const LayerView& view, int64_t t, std::vector<KeyMass>& row) {
  const int64_t K = view.columns(), at = (maps.head * view.tokens() + t) * K;
  maps.estimate.add_row(t, view.estimate.data<float>() + at, K);
  if (view.selected.defined()) {
    const uint8_t* chosen = view.selected.data<uint8_t>() + at;
    for (int64_t c = 0; c < K; ++c) {
      if (chosen[c]) maps.selected.add(t, c, 1);
    }
  }
  widen_row(view, maps.head, t, row);
  for (const KeyMass& each : row) maps.widened.add_range(t, each.first, each.behind, each.mass);
}

// The map in at most `cells` rows and columns of cells.
CellMap within(const CellMap& map, int64_t cells) {
  if (map.empty()) return map;
  auto blocks = [&](const Blocks& axis) {
    return Blocks(axis.items(), cells_within(axis.items(), axis.cells(), cells));
  };
  return map.coarser(blocks(map.rows()), blocks(map.columns()));
}

}  // namespace

void MapCollector::add(int64_t layer, const LayerView& view) {
  const int64_t T = view.tokens(), H = view.heads();
  if (maps_.heat.empty()) {
    maps_.tokens = T;
    maps_.cells = std::min(T, request_.cells);
    maps_.columns = view.columns();
    maps_.causal = view.causal;
  }
  TokenHeat heat{.teacher = std::vector<float>(size_t(T)), .student = {}};
  if (view.has_mask()) heat.student.resize(size_t(T));
  const bool layer_wanted = request_.layers.empty() || request_.layers.count(layer);
  for (int64_t h = 0; h < H; ++h) {
    HeadMaps maps{.layer = layer, .head = h};
    add_head(maps, view, heat);
    if (layer_wanted && (request_.heads.empty() || request_.heads.count(h)))
      maps_.heads.push_back(std::move(maps));
  }
  for (int64_t j = 0; j < T; ++j) {
    const auto readers = float(H * (view.causal ? T - j : T));
    heat.teacher[size_t(j)] /= readers;
    if (view.has_mask()) heat.student[size_t(j)] /= readers;
  }
  maps_.heat.push_back(std::move(heat));
}

void MapCollector::add_head(HeadMaps& maps, const LayerView& view, TokenHeat& heat) const {
  const int64_t T = view.tokens(), K = view.columns(), N = maps_.cells;
  const Blocks tokens(T, N);
  maps.teacher = CellMap(tokens, tokens);
  if (K) {
    const Blocks columns(K, cells_within(K, K, N));
    maps.estimate = CellMap(tokens, columns);
    if (view.selected.defined()) maps.selected = CellMap(tokens, columns);
    maps.widened = CellMap(tokens, tokens);
  }
  if (view.has_mask()) maps.mask = maps.student = CellMap(tokens, tokens);
  std::vector<KeyMass> columns_of_row;
  std::vector<KeptKey> kept;
  for (int64_t first = 0; first < T; first += kTile) {
    const int64_t count = std::min(kTile, T - first);
    const Tensor tile = teacher_tile(view, maps.head, first, count);
    for (int64_t t = first; t < first + count; ++t) {
      const float* row = tile.data<float>() + (t - first) * T;
      const int64_t w = view.keys_of(t);
      maps.teacher.add_row(t, row, w);
      for (int64_t j = 0; j < w; ++j) heat.teacher[size_t(j)] += row[j];
      if (K) add_estimate(maps, view, t, columns_of_row);
      if (!view.has_mask()) continue;
      kept_keys(view, maps.head, t, kept);
      for (const KeptKey& each : kept) {
        maps.mask.add(t, each.key, 1);
        maps.student.add(t, each.key, each.mass);
        heat.student[size_t(each.key)] += each.mass;
      }
    }
  }
}

TextMaps TextMaps::coarser(int64_t wanted) const {
  TextMaps out{
      .tokens = tokens, .cells = wanted, .columns = columns, .causal = causal, .heat = heat};
  for (const HeadMaps& source : heads) {
    out.heads.push_back({.layer = source.layer,
                         .head = source.head,
                         .teacher = within(source.teacher, wanted),
                         .estimate = within(source.estimate, wanted),
                         .selected = within(source.selected, wanted),
                         .widened = within(source.widened, wanted),
                         .mask = within(source.mask, wanted),
                         .student = within(source.student, wanted)});
  }
  return out;
}

int64_t cells_for(int64_t tokens, int64_t heads, int64_t numbers) {
  auto fits = [&](int64_t side) { return heads * side * side <= numbers; };
  if (tokens <= kSides[0] && fits(tokens)) return tokens;
  for (int64_t side : kSides) {
    if (side <= tokens && fits(side)) return side;
  }
  return 1;
}

int64_t cells_at_most(int64_t tokens, int64_t cells) {
  return tokens <= kSides[0] && tokens <= cells
             ? tokens
             : cells_within(tokens, tokens, std::min(cells, kSides[0]));
}

int64_t coarser_cells(int64_t tokens, int64_t cells, int64_t than) {
  for (int64_t side : kSides) {
    if (side < than && (cells % side == 0 || cells == tokens)) return side;
  }
  return 0;
}

}  // namespace brine::distill
