// One forward pass with all tensors that the attention method shows, written to HDF5 by layer.
#pragma once

#include <string>
#include <vector>

#include "nn/io/model_io.h"

namespace brine {

// A value of the tap off the tape; for tensors with a number per mask entry, only the entries in
// use: on a device they may be longer.
Tensor in_use(const nn::Tap& tap, const std::string& name);

struct CaptureCall {
  std::vector<int32_t> ids;  // one sequence
  nn::RuntimeOptions options;
  std::string model;  // its source, for the attributes
};

// Writes `out`, which must not exist: /ids i32 [1, T], /hidden [1, T, C] after the last norm, and
// under /layers/00, /layers/01... the entries of the Tap and "output"; three entries have other
// names there: scores is "S", gates is "scalers", attention_output is "context". Attributes of the
// root give the format, the model and its configuration.
void capture(nn::LoadedModel& model, const CaptureCall& call, const std::string& out);

}  // namespace brine
