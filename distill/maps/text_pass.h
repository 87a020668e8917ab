// One text through a model next to its teacher: maps of all heads, mask recall, kept keys.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "distill/evaluation/recall_observer.h"
#include "distill/maps/head_maps.h"
#include "distill/maps/importance.h"
#include "tensor/comm/communicator.h"

namespace brine::distill {

struct TextPass {
  std::vector<int32_t> ids = {};  // one sequence
  int64_t k = 0;                  // kept keys; 0: as trained
  std::string teacher = {};       // of a model with a mask: a directory or file, or kSelf
  MapRequest maps = {};
  bool keeps_masks = false;  // for mask_overlap()
  std::optional<ImportanceRequest> importance = {};
  ImportanceFile* file = nullptr;  // of the first rank; receives the lines of every layer
  // Those that divide the layers: layer i is rank i mod R's; null: this one has all.
  Communicator* ranks = nullptr;
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
  // Whether this rank adds the layer.
  bool has(int64_t layer) const {
    return !pass_.ranks || layer % pass_.ranks->size() == pass_.ranks->rank();
  }
  // The next one of its layers.
  void add(int64_t layer, const LayerView& view);
  // All layers, on the first rank; nothing on the others. `recall` has a place for each layer.
  // Every rank calls it, once; an error is a SharedError.
  TextAttention take(std::vector<Recall> recall);

 private:
  bool is_divided() const { return pass_.ranks && pass_.ranks->size() > 1; }

  const TextPass& pass_;
  MapCollector maps_;
  std::vector<FlatCsr> masks_;
  std::vector<std::string> lines_;  // of each layer, when they are divided
};

// Runs the model. A method without a mask has the maps of its own dense attention only.
TextAttention attend_to_text(nn::LoadedModel& model, const TextPass& pass);

// The share of keys that two masks of the same text have in common, of all that one of them keeps:
// [layer][head], in [0, 1].
std::vector<std::vector<double>> mask_overlap(const std::vector<FlatCsr>& a,
                                              const std::vector<FlatCsr>& b);

}  // namespace brine::distill
