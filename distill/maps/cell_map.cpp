// Cells of maps.
#include "distill/maps/cell_map.h"

namespace brine::distill {

Blocks::Blocks(int64_t items, int64_t cells) : items_(items), cells_(cells) {
  check(cells > 0 && cells <= items, "maps: ", cells, " cells for ", items, " tokens or columns");
}

bool Blocks::refines(const Blocks& coarse) const {
  if (coarse.items_ != items_ || coarse.cells_ > cells_) return false;
  for (int64_t c = 0; c < coarse.cells_; ++c) {
    const int64_t at = coarse.begin(c);
    if (begin(of(at)) != at) return false;
  }
  return true;
}

void CellMap::add_row(int64_t row, const float* values, int64_t n) {
  float* sums = &sum_[cell(rows_.of(row), 0)];
  float* maxima = &largest_[cell(rows_.of(row), 0)];
  for (int64_t c = 0; c < columns_.cells() && columns_.begin(c) < n; ++c) {
    const int64_t end = std::min(columns_.begin(c + 1), n);
    float total = 0, top = maxima[c];
    for (int64_t j = columns_.begin(c); j < end; ++j) {
      total += values[j];
      top = std::max(top, values[j]);
    }
    sums[c] += total;
    maxima[c] = top;
  }
}

void CellMap::add_range(int64_t row, int64_t begin, int64_t end, float value) {
  while (begin < end) {
    const int64_t c = columns_.of(begin), stop = std::min(end, columns_.begin(c + 1));
    const size_t at = cell(rows_.of(row), c);
    sum_[at] += value * float(stop - begin);
    largest_[at] = std::max(largest_[at], value);
    begin = stop;
  }
}

float CellMap::mass(int64_t row_cell, int64_t column_cell) const {
  return sum_[cell(row_cell, column_cell)] / float(rows_.size(row_cell));
}

float CellMap::most(int64_t row_cell, int64_t column_cell) const {
  return largest_[cell(row_cell, column_cell)];
}

float CellMap::sum(int64_t row_cell, int64_t column_cell) const {
  return sum_[cell(row_cell, column_cell)];
}

CellMap CellMap::coarser(const Blocks& rows, const Blocks& columns) const {
  check(rows_.refines(rows) && columns_.refines(columns), "maps: ", rows.cells(), " x ",
        columns.cells(), " cells are not made of ", rows_.cells(), " x ", columns_.cells());
  CellMap out(rows, columns);
  for (int64_t r = 0; r < rows_.cells(); ++r) {
    for (int64_t c = 0; c < columns_.cells(); ++c) {
      const size_t to = out.place(rows_.begin(r), columns.of(columns_.begin(c)));
      out.sum_[to] += sum_[cell(r, c)];
      out.largest_[to] = std::max(out.largest_[to], largest_[cell(r, c)]);
    }
  }
  return out;
}

}  // namespace brine::distill
