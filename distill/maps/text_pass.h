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
};

struct TextAttention {
  TextMaps maps;
  std::vector<Recall> recall;  // by layer; empty without a mask
};

// Runs the model. A method without a mask has the maps of its dense attention only.
TextAttention attend_to_text(nn::LoadedModel& model, const TextPass& pass);

}  // namespace brine::distill
