// The maps of every layer and head for one text, averaged down to cells.
#pragma once

#include <array>
#include <set>
#include <vector>

#include "distill/maps/cell_map.h"
#include "nn/attention/observer.h"
#include "tensor/mask/teacher.h"

namespace brine::distill {

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
  int64_t first = 0, behind = 0;
  float mass = 0;  // of each key
};
// The estimate of row t of a head, widened to keys (docs/method.md section 4.1) and normalised: the
// masses of all keys sum to 1. `out` is replaced.
void widen_row(const LayerView& view, int64_t head, int64_t t, std::vector<KeyMass>& out);

struct KeptKey {
  int64_t key = 0;
  float mass = 0;  // of the student's attention
};
// The keys that row t of a head keeps, ascending; `out` is replaced.
void kept_keys(const LayerView& view, int64_t head, int64_t t, std::vector<KeptKey>& out);

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

// Cells of a side of the pictures of T tokens: T itself if it is at most `most`, else at most that
// and a number that can be halved several times.
int64_t cells_at_most(int64_t tokens, int64_t most);
// The next larger cells that consist of whole ones of `cells`; 0: there are none.
int64_t coarser_cells(int64_t tokens, int64_t cells);

}  // namespace brine::distill
