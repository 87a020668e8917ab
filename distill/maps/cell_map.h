// Maps of attention averaged down to cells: the mass of each block of queries on each block of
// keys, so that a map of any length becomes a picture without cutting it.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/base/error.h"

namespace brine::distill {

// `items` tokens in `cells` blocks whose sizes differ by one at most.
class Blocks {
 public:
  Blocks() = default;
  Blocks(int64_t items, int64_t cells);

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

// Entries of a T x T matrix added into cells. All numbers are f32.
class CellMap {
 public:
  CellMap() = default;
  explicit CellMap(const Blocks& tokens)
      : tokens_(tokens), sum_(size_t(tokens.cells() * tokens.cells())) {}

  bool empty() const { return sum_.empty(); }
  const Blocks& tokens() const { return tokens_; }

  // The same value for the columns [begin, end) of a row.
  void add(int64_t row, int64_t begin, int64_t end, float value);
  // The entries [0, n) of a row.
  void add_row(int64_t row, const float* values, int64_t n);

  float sum(int64_t row_cell, int64_t column_cell) const {
    return sum_[size_t(row_cell * tokens_.cells() + column_cell)];
  }
  // Mean over a cell's rows of the sum over its columns: the mass that a query of the block puts on
  // the block of keys. Without averaging it is the entry.
  float mass(int64_t row_cell, int64_t column_cell) const {
    return sum(row_cell, column_cell) / float(tokens_.size(row_cell));
  }

  // The same map with larger cells; throws unless these consist of whole cells.
  CellMap coarser(const Blocks& tokens) const;

 private:
  Blocks tokens_;
  std::vector<float> sum_;
};

}  // namespace brine::distill
