// What a capture is: the tokens that go through the model, and how its attention is computed.
#include "apps/inspect/capture_input.h"

namespace brine {

void CaptureInput::describe(data::Schema& s) {
  describe_text(s, "Capture: ");
  s.choice("path", path, distill::kAttentionPaths,
           "Capture: dense is the T x T reference, of flash attention too");
}

CaptureCall capture_call(const CaptureInput& in, nn::LoadedModel& m) {
  const bool dense = in.path == distill::AttentionPath::dense;
  if (dense && nn::is_full_attention(m.config.attention) &&
      !m.model->attention_traits().quadratic) {
    distill::use_attention(m, "dense");
  }
  return {.ids = in.ids(m, "--capture"),
          .options = {.k = in.k, .dense_path = dense},
          .model = m.directory};
}

}  // namespace brine
