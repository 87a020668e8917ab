// The cost of a model, counted with the meter during one pass.
#include "nn/models/model_costs.h"

namespace brine::nn {

MetaModel::MetaModel(const ModelConfig& config)
    : model(make_model(config, Init{.random = {}, .device = Device::meta})),
      store(*model, ParameterStore::Gradients::later, Device::meta) {}

std::map<std::string, Cost> forward_costs(Model& model, int64_t tokens,
                                          const AttentionDials& dials) {
  NoGrad off;
  CostMeter meter;
  const Tensor hidden =
      model.hidden({.ids = Tensor::zeros({1, tokens}, Dtype::i32), .dials = dials});
  if (model.has_logits()) model.logits(hidden);
  std::map<std::string, Cost> costs = meter.costs();
  std::erase_if(
      costs, [](const auto& entry) { return entry.second.macs == 0 && entry.second.bytes == 0; });
  return costs;
}

}  // namespace brine::nn
