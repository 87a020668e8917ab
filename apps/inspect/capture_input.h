// What a capture is: the tokens that go through the model, and how its attention is computed.
#pragma once

#include <string>
#include <vector>

#include "apps/inspect/capture.h"
#include "distill/evaluation/evaluate_text.h"

namespace brine {

// Exactly one of text, tokens and data is given.
struct CaptureInput {
  std::string text;               // with [CLS] and [SEP] for an encoder
  std::string tokens;             // ids, "1,2,3"
  std::vector<std::string> data;  // a window of these text files
  int64_t window = 0;             // number of the window in the files
  int64_t sequence_length = 0;    // tokens of a window; 0 = the model's positions
  int64_t k = 0;                  // kept keys; 0: as trained
  distill::AttentionPath path = distill::AttentionPath::sparse;

  void describe(data::Schema& s);
};
// The call for a model as it was loaded. Full attention without maps is replaced by one with them
// where the dense path is asked for.
CaptureCall capture_call(const CaptureInput& input, nn::LoadedModel& model);

}  // namespace brine
