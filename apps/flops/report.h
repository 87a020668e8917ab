// What `brine flops` counts and prints.
#pragma once

#include "data/config/schema.h"
#include "nn/models/model_costs.h"

namespace brine {

// A model's costs at one length, and those of the same model with full attention.
struct CostReport {
  std::string attention;
  int64_t tokens = 0;
  nn::Costs model, full;
};
// `model`: the model of the configuration, on the meta device.
CostReport cost_report(const nn::ModelConfig& config, nn::Model& model, int64_t tokens,
                       const nn::RuntimeOptions& options);

// "model" (as `name` says), "tokens", "attention", "costs" and "flash", both by component with
// their sum "all".
data::Json to_json(const std::string& name, const CostReport& report);
// As tables on standard output; full attention is not repeated where the model has it.
void print(const CostReport& report);

}  // namespace brine
