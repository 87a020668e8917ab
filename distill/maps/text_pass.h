// One text through a model next to its teacher: maps of all heads, mask recall.
#pragma once

#include <string>
#include <vector>

#include "distill/evaluation/recall_observer.h"
#include "distill/maps/head_maps.h"

namespace brine::distill {

struct TextPass {
  std::vector<int32_t> ids = {};  // one sequence
  int64_t k = 0;                  // kept keys; 0: as trained
  std::string teacher = {};       // of a model with a mask: a directory or file, or kSelf
  MapRequest maps = {};
  bool keeps_masks = false;  // for mask_overlap()
};

struct TextAttention {
  TextMaps maps;
  std::vector<Recall> recall;  // by layer; empty without a mask
  std::vector<FlatCsr> masks;  // by layer, on the CPU, if they were requested
};

// What is done with the layers of a text, wherever they come from.
class LayerCollector {
 public:
  explicit LayerCollector(const TextPass& pass) : pass_(pass), maps_(pass.maps) {}
  // The next layer.
  void add(int64_t layer, const LayerView& view);
  // All layers; called once. `recall` has a place for each layer.
  TextAttention take(std::vector<Recall> recall);

 private:
  const TextPass& pass_;
  MapCollector maps_;
  std::vector<FlatCsr> masks_;
};

// Runs the model. A method without a mask has the maps of its dense attention only.
TextAttention attend_to_text(nn::LoadedModel& model, const TextPass& pass);

// The share of keys that two masks of the same text have in common, of all that one of them keeps:
// [layer][head], in [0, 1].
std::vector<std::vector<double>> mask_overlap(const std::vector<FlatCsr>& a,
                                              const std::vector<FlatCsr>& b);

}  // namespace brine::distill
