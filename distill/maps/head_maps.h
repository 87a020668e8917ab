// The maps of every layer and head for one text, averaged down to cells: the mass of each block of
// queries on each block of keys, so that a map of any length becomes a picture without cutting it.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "distill/evaluation/recall_observer.h"
#include "nn/attention/observer.h"
#include "tensor/mask/teacher.h"

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

  float& sum(int64_t row_cell, int64_t column_cell) {
    return sum_[size_t(row_cell * tokens_.cells() + column_cell)];
  }
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

// What pictures of a layer's attention are made from: the tensors of one sequence.

// One sequence of T tokens without padding, on the CPU, f32; what the method does not have is
// undefined.
struct LayerView {
  TeacherAttention teacher = {};  // [1, H, T, .]
  bool causal = true;
  Tensor estimate = {};       // [1, H, T, K], rows sum to 1 over the columns that have keys
  FlatCsr mask = {};          // columns undefined: the method attends to all keys
  Tensor probabilities = {};  // [entries] of the mask, or [1, H, T, T]

  int64_t heads() const;
  int64_t tokens() const;
  int64_t columns() const { return estimate.defined() ? estimate.dim(3) : 0; }  // K; 0: none
  int64_t keys_of(int64_t t) const { return causal ? t + 1 : tokens(); }        // that row t sees
  bool has_mask() const { return mask.columns.defined() && probabilities.defined(); }
};

// The layer of a running model, with the teacher's attention of the same layer.
LayerView view_of(const nn::Tap& tap, const TeacherAttention& teacher, bool causal);

// The teacher's attention of the rows [first, first + count) of a head, f32 [count, T]; 0 for keys
// that a row does not see. Never a T x T tensor if `count` is small.
Tensor teacher_tile(const LayerView& view, int64_t head, int64_t first, int64_t count);

// Neighbouring keys with the same mass.
struct KeyMass {
  int64_t first = 0, end = 0;
  float mass = 0;  // of each key
};
// The estimate of row t of a head, widened to keys (docs/method.md section 4.1) and normalised: the
// masses of all keys sum to 1. `out` is replaced.
void widen_row(const LayerView& view, int64_t head, int64_t t, std::vector<KeyMass>& out);

// The teacher's attention; the estimate widened to keys; 1 where a key is kept; the student's
// attention on the mask.
enum class Picture { teacher, estimate, mask, student };
constexpr size_t kPictures = 4;

// Of one head, T x T in N x N cells; maps that the method does not have are empty.
struct HeadMaps {
  int64_t layer = 0, head = 0;
  std::array<CellMap, kPictures> maps = {};

  CellMap& operator[](Picture what) { return maps[size_t(what)]; }
  const CellMap& operator[](Picture what) const { return maps[size_t(what)]; }
};

struct TextMaps {
  int64_t tokens = 0, cells = 0;  // T, N
  bool causal = true;
  std::vector<HeadMaps> heads = {};  // by layer, then head

  // The same with larger cells.
  TextMaps coarser(int64_t cells) const;
};

struct MapRequest {
  int64_t cells = 0;                          // N; at most T
  std::set<int64_t> layers = {}, heads = {};  // maps of these only; empty: of all
};

class MapCollector {
 public:
  explicit MapCollector(const MapRequest& request) : request_(request) {}
  void add(int64_t layer, const LayerView& view);
  TextMaps take() { return std::move(maps_); }

 private:
  void add_head(HeadMaps& maps, const LayerView& view) const;

  MapRequest request_;
  TextMaps maps_;
};

// Cells on a side of the map of T tokens: T if it is at most `limit` and 384, else at most these
// and a number that can be halved several times.
int64_t max_cells(int64_t tokens, int64_t limit);
// The next larger cells that consist of whole ones of `cells`; 0: there are none.
int64_t coarser_cells(int64_t tokens, int64_t cells);

// One text through a model next to its teacher.
struct TextPass {
  std::vector<int32_t> ids = {};  // one sequence
  int64_t k = 0;                  // kept keys; 0: as trained
  std::string teacher = {};       // of a model with a mask: a directory or file, or kSelf
  MapRequest maps = {};
};

struct TextAttention {
  TextMaps maps;
  std::vector<Recall> recall;  // by layer; empty without a mask
};

// Runs the model. A method without a mask has the maps of its dense attention only.
TextAttention attend_to_text(nn::LoadedModel& model, const TextPass& pass);

}  // namespace brine::distill
