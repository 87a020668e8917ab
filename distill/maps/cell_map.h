// Maps of attention averaged down to cells: the mean mass and the largest entry of each block of
// queries and keys, so that a map of any length becomes a picture without cutting it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tensor/base/error.h"

namespace brine::distill {

// `items` tokens or columns in `cells` blocks whose sizes differ by one at most.
class Blocks {
 public:
  Blocks() = default;
  Blocks(int64_t items, int64_t cells);

  int64_t items() const { return items_; }
  int64_t cells() const { return cells_; }
  int64_t begin(int64_t cell) const { return cell * items_ / cells_; }
  int64_t size(int64_t cell) const { return begin(cell + 1) - begin(cell); }
  // The largest c with begin(c) <= item.
  int64_t of(int64_t item) const { return ((item + 1) * cells_ - 1) / items_; }
  // Whether every block of `coarse` is made of whole blocks of this.
  bool refines(const Blocks& coarse) const;

 private:
  int64_t items_ = 0, cells_ = 0;
};

// Entries of a matrix added into cells. All numbers are f32.
class CellMap {
 public:
  CellMap() = default;
  CellMap(const Blocks& rows, const Blocks& columns)
      : rows_(rows),
        columns_(columns),
        sum_(size_t(rows.cells() * columns.cells())),
        largest_(sum_.size()) {}

  bool empty() const { return sum_.empty(); }
  const Blocks& rows() const { return rows_; }
  const Blocks& columns() const { return columns_; }
  bool averaged() const {
    return rows_.items() != rows_.cells() || columns_.items() != columns_.cells();
  }

  // An entry >= 0 of the matrix.
  void add(int64_t row, int64_t column, float value) {
    const size_t at = place(row, columns_.of(column));
    sum_[at] += value;
    largest_[at] = std::max(largest_[at], value);
  }
  // The entries [0, n) of a row.
  void add_row(int64_t row, const float* values, int64_t n);
  // The same value for the columns [begin, end) of a row.
  void add_range(int64_t row, int64_t begin, int64_t end, float value);

  // Mean over a cell's rows of the sum over its columns: the mass that a query of the block puts on
  // the block of keys. Without averaging it is the entry.
  float mass(int64_t row_cell, int64_t column_cell) const;
  float most(int64_t row_cell, int64_t column_cell) const;  // the largest entry
  float sum(int64_t row_cell, int64_t column_cell) const;   // of all entries

  // The same map with larger cells; throws unless these consist of whole cells.
  CellMap coarser(const Blocks& rows, const Blocks& columns) const;

 private:
  size_t place(int64_t row, int64_t column_cell) const {
    return size_t(rows_.of(row) * columns_.cells() + column_cell);
  }
  size_t cell(int64_t row_cell, int64_t column_cell) const {
    return size_t(row_cell * columns_.cells() + column_cell);
  }

  Blocks rows_, columns_;
  std::vector<float> sum_, largest_;
};

}  // namespace brine::distill
