// The cost of a model, counted with the meter during one pass.
#include "nn/models/model_costs.h"

namespace brine::nn {

MetaModel::MetaModel(const ModelConfig& config)
    : model(make_model(config, Init{.random = {}, .device = Device::meta})),
      store(*model, ParameterStore::Gradients::later, Device::meta) {}

Costs forward_costs(Model& model, int64_t tokens, const RuntimeOptions& options) {
  NoGrad off;
  CostMeter meter;
  const Tensor hidden =
      model.hidden({.ids = Tensor::zeros({1, tokens}, Dtype::i32), .options = options});
  if (model.has_logits()) model.logits(hidden);
  Costs costs = meter.costs();
  std::erase_if(
      costs, [](const auto& entry) { return entry.second.macs == 0 && entry.second.bytes == 0; });
  return costs;
}

Cost total(const Costs& costs) {
  Cost sum;
  for (const auto& [component, cost] : costs) {
    sum.macs += cost.macs;
    sum.bytes += cost.bytes;
  }
  return sum;
}

}  // namespace brine::nn
