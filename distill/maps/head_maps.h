// The maps of every layer and head for one text, averaged down to cells.
#pragma once

#include <array>
#include <set>
#include <vector>

#include "distill/maps/cell_map.h"
#include "distill/maps/layer_view.h"

namespace brine::distill {

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
