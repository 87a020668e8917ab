// The cost of a model's forward pass, counted while it runs: on the meta device quickly and without
// memory, for every family, attention method and length.
#pragma once

#include "nn/models/model_config.h"
#include "nn/optim/parameter_store.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {

// A model whose parameters are on the meta device. The store packs them as in a real model.
struct MetaModel {
  explicit MetaModel(const ModelConfig& config);

  std::unique_ptr<Model> model;
  ParameterStore store;
};

// Multiply-adds and bytes of one sequence of `tokens` tokens without padding, from ids to the
// logits of every position (to the hidden states if the model has no logits), by component. The
// entries of a sparse mask depend on values: on the meta device a row has the keys of its budget,
// which equals a selection's up to the rounding to whole columns.
using Costs = std::map<std::string, Cost>;
Costs forward_costs(Model& model, int64_t tokens, const RuntimeOptions& options = {});
// The sum over all components.
Cost total(const Costs& costs);

}  // namespace brine::nn
