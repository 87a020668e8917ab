// The tensors of a model's files under Brine's names: spellings, wrappers, ties, and what to say
// when names do not fit.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/checkpoint/weights.h"
#include "nn/models/model_config.h"

namespace brine::nn {

// In the order of their data on the disk.
struct Weight {
  std::string name, name_in_file;
  data::WeightEntry from;
};

// A model on the meta device with the tensors that its files have for it.
struct Plan {
  ModelConfig config;  // with the heads that the files have
  std::unique_ptr<Model> model;
  std::vector<Weight> weights;
  // What a wrapper put before every name, such as "module." or "_orig_mod."; the weights have names
  // without it.
  std::string prefix;
};

struct ModelFiles {
  std::string config_path;  // for messages
  const data::Json& config;
  const data::WeightFiles* base;  // of an adapter, otherwise null
  const data::WeightFiles& weights;
};

// Throws when two tensors are the same one, when a tied tensor differs, and for more layers than
// tensors.
Plan plan_for(const ModelConfig& config, const ModelFiles& files);

// Throws when a tensor of the model is missing or the files have an unknown one.
void check_names(Model& model, const ModelConfig& config, const std::vector<Weight>& weights,
                 const data::WeightFiles& files);

// Names with a space before each; of many the first.
std::string listed(const std::vector<std::string>& names);

}  // namespace brine::nn
