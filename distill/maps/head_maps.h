// The maps of every layer and head for one text, averaged down to cells, and how much attention
// each token receives.
#pragma once

#include <set>
#include <vector>

#include "distill/maps/cell_map.h"
#include "distill/maps/layer_view.h"

namespace brine::distill {

// Of one head; maps that the method does not have are empty.
struct HeadMaps {
  int64_t layer = 0, head = 0;
  CellMap teacher = {};   // [N, N] of T x T
  CellMap estimate = {};  // [N, M] of T x K
  CellMap selected = {};  // [N, M] of T x K, 1 where a column is selected
  CellMap widened = {};   // [N, N] the estimate widened to keys
  CellMap mask = {};      // [N, N] 1 where a key is kept
  CellMap student = {};   // [N, N] the student's attention on the mask
};

// Attention that a key receives, [T]: mean over the heads and the queries that see it.
struct TokenHeat {
  std::vector<float> teacher, student;
};

struct TextMaps {
  int64_t tokens = 0, cells = 0, columns = 0;  // T, N, K
  bool causal = true;
  std::vector<HeadMaps> heads = {};  // by layer, then head
  std::vector<TokenHeat> heat = {};  // by layer

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
  // The next layer. Its heat is collected even if its maps are not requested.
  void add(int64_t layer, const LayerView& view);
  TextMaps take() { return std::move(maps_); }

 private:
  void add_head(HeadMaps& maps, const LayerView& view, TokenHeat& heat) const;

  MapRequest request_;
  TextMaps maps_;
};

// Cells of a side of the pictures of T tokens, with at most `numbers` cells in all heads: T
// itself, or a number that halves, thirds and quarters well.
int64_t cells_for(int64_t tokens, int64_t heads, int64_t numbers);
// The largest of these choices that is at most `cells`.
int64_t cells_at_most(int64_t tokens, int64_t cells);
// The next choice of cells below `than` that are made of whole ones of `cells`; 0: there is none.
int64_t coarser_cells(int64_t tokens, int64_t cells, int64_t than);

}  // namespace brine::distill
