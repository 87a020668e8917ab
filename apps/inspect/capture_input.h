// The tokens that `brine inspect --capture` sends through a model.
#pragma once

#include <string>
#include <vector>

#include "nn/io/model_io.h"

namespace brine {

// Exactly one of text, tokens and data is given.
struct CaptureInput {
  std::string text;               // with [CLS] and [SEP] for an encoder
  std::string tokens;             // ids, "1,2,3"
  std::vector<std::string> data;  // a window of these text files
  int64_t window = 0;             // number of the window in the files
  int64_t sequence_length = 0;    // tokens of a window; 0 = the model's positions
};
std::vector<int32_t> capture_ids(const CaptureInput& input, const nn::LoadedModel& model);

}  // namespace brine
