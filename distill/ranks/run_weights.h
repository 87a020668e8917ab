// Loading the weights of a run into a model of which only a part is trained.
#pragma once

#include <functional>
#include <string>

#include "data/safetensors/safetensors.h"
#include "nn/models/model.h"
#include "nn/optim/parameter_store.h"

namespace brine::distill {

// Sets the parameters of the store and the buffers. Other parameters are constants, whose memory
// may be another model's: the file must have the same bits. Throws for missing and unknown tensors,
// unless `may_be_missing`.
void load_weights(const data::Safetensors& file, nn::Model& model, const nn::ParameterStore& store,
                  const std::function<bool(const std::string&)>& may_be_missing = {});

}  // namespace brine::distill
