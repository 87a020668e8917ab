// A student that shares the memory of its teacher's weights.
#pragma once

#include <memory>

#include "nn/io/model_io.h"
#include "nn/models/model_config.h"

namespace brine::nn {

// make_student() without copies: every tensor outside the attention methods is in the teacher's
// memory, mapped or in the flat buffer of its ParameterStore, and a constant. The attention
// method's parameters have their initial values, drawn from `seed`. A ParameterStore of it must
// leave the shared parameters out (ParameterStore::Trained). Throws when the sizes differ.
std::unique_ptr<Model> make_shared_student(const ModelConfig& config, Model& teacher,
                                           uint64_t seed);

// Gives a loaded model the attention that its config has now. The base stays in its memory, as a
// constant; what the same method has learned stays, too. The store has the attention's parameters
// alone and is null if there are none.
void replace_attention(LoadedModel& model);

}  // namespace brine::nn
