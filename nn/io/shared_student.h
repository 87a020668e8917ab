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

// Calibrates the attention of `student` (AttentionTraits::calibrates) on the keys that `teacher`, a
// model of its sizes, makes of the first kCalibrationTokens of ids [1, T]; returns their number.
inline constexpr int64_t kCalibrationTokens = 2048;
int64_t calibrate_attention(Model& student, Model& teacher, const Tensor& ids);
// The same with the model's weights under full attention.
int64_t calibrate_attention(const LoadedModel& model, const Tensor& ids);

// Gives a loaded model the attention that its config has now. The base stays in its memory, as a
// constant; what the same method has learned stays, too, and another one that calibrates is
// `uncalibrated`. The store has the attention's parameters
// alone and is null if there are none.
void replace_attention(LoadedModel& model);

}  // namespace brine::nn
