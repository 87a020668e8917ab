// Cells of maps.
#include "distill/maps/cell_map.h"

#include <algorithm>

namespace brine::distill {

Blocks::Blocks(int64_t items, int64_t cells) : items_(items), cells_(cells) {
  check(cells > 0 && cells <= items, "maps: ", cells, " cells for ", items, " tokens");
}

bool Blocks::refines(const Blocks& coarse) const {
  if (coarse.items_ != items_ || coarse.cells_ > cells_) return false;
  for (int64_t c = 0; c < coarse.cells_; ++c) {
    const int64_t at = coarse.begin(c);
    if (begin(of(at)) != at) return false;
  }
  return true;
}

void CellMap::add(int64_t row, int64_t begin, int64_t end, float value) {
  float* sums = &sum_[size_t(tokens_.of(row) * tokens_.cells())];
  while (begin < end) {
    const int64_t c = tokens_.of(begin), stop = std::min(end, tokens_.begin(c + 1));
    sums[c] += value * float(stop - begin);
    begin = stop;
  }
}

void CellMap::add_row(int64_t row, const float* values, int64_t n) {
  float* sums = &sum_[size_t(tokens_.of(row) * tokens_.cells())];
  for (int64_t c = 0; c < tokens_.cells() && tokens_.begin(c) < n; ++c) {
    const int64_t end = std::min(tokens_.begin(c + 1), n);
    float total = 0;
    for (int64_t j = tokens_.begin(c); j < end; ++j) total += values[j];
    sums[c] += total;
  }
}

CellMap CellMap::coarser(const Blocks& tokens) const {
  check(tokens_.refines(tokens), "maps: ", tokens.cells(), " cells are not made of ",
        tokens_.cells());
  CellMap out(tokens);
  for (int64_t r = 0; r < tokens_.cells(); ++r) {
    for (int64_t c = 0; c < tokens_.cells(); ++c) {
      const int64_t row = tokens.of(tokens_.begin(r)), column = tokens.of(tokens_.begin(c));
      out.sum_[size_t(row * tokens.cells() + column)] += sum(r, c);
    }
  }
  return out;
}

}  // namespace brine::distill
