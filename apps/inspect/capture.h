// One forward pass with everything that the attention method shows, written to HDF5 by layer.
#pragma once

#include <string>
#include <vector>

#include "nn/io/model_io.h"

namespace brine {

// A value of the tap off the tape; of those that have a number for every entry of a mask, the
// entries in use: on a device there may be room behind them.
Tensor in_use(const nn::Tap& tap, const std::string& name);

struct CaptureCall {
  std::vector<int32_t> ids;  // one sequence
  nn::AttentionDials dials;
  std::string model;  // where it came from, for the attributes
};

// Writes `out`, which must not exist: /ids i32 [1, T], /hidden [1, T, C] after the last norm, and
// under /layers/00, /layers/01... whatever the Tap holds ("scores" under the paper's name S) with
// "output". Attributes of the root tell the format, the model and its configuration.
void capture(nn::LoadedModel& model, const CaptureCall& call, const std::string& out);

}  // namespace brine
