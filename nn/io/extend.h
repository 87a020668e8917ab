// Extending a model to longer inputs: its learned tables of positions are resampled (docs/method.md
// section 5).
#pragma once

#include "nn/io/model_io.h"

namespace brine::nn {

// The same model with `positions` positions; positions that the settings of its attention method
// fix grow with them. Its settings are a copy: changing them does not change `config`.
ModelConfig extend_config(ModelConfig& config, int64_t positions);

// The model with `positions` positions: every table with a row for each position (those of the
// model and of its attention method) is resampled, bilinear with aligned corners; rows before the
// positions, as OPT's first two, and all other tensors are kept. Throws when `positions` is not
// above the present number.
LoadedModel extend_positions(LoadedModel& model, int64_t positions);

}  // namespace brine::nn
