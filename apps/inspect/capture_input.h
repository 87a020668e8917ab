// What a capture is: the tokens that go through the model, and how its attention is computed.
#pragma once

#include <string>
#include <vector>

#include "apps/inspect/capture.h"
#include "apps/inspect/text_input.h"
#include "distill/evaluation/evaluate_text.h"

namespace brine {

struct CaptureInput : TextInput {
  distill::AttentionPath path = distill::AttentionPath::sparse;

  void describe(data::Schema& s);
};
// The call for a model as it was loaded. Full attention without maps is replaced by one with them
// where the dense path is asked for.
CaptureCall capture_call(const CaptureInput& input, nn::LoadedModel& model);

}  // namespace brine
