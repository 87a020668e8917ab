// A model with its low-rank additions merged into its weights.
#include "nn/io/model_io.h"
#include "nn/layers/low_rank.h"

namespace brine::nn {

LoadedModel merged_low_rank(const LoadedModel& model) {
  check(model.config.lora_rank > 0, "export: ", model.directory,
        " has no low-rank additions (lora_rank) to merge");
  LoadedModel out;
  out.config = model.config;
  out.config.lora_rank = 0;
  out.directory = model.directory;
  out.model = make_model(out.config, Init{.random = {}, .device = Device::meta});
  out.store = std::make_unique<ParameterStore>(*out.model, ParameterStore::Gradients::later);
  load_state(*out.model, merge_low_rank(state_of(*model.model)), model.directory);
  return out;
}

}  // namespace brine::nn
