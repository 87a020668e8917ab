// brine inspect: describes a path; with --capture it writes the intermediates of one forward pass.
#include <iostream>

#include "apps/cli/terminal.h"
#include "apps/cli/unused_flags.h"
#include "apps/inspect/capture.h"
#include "apps/inspect/capture_input.h"
#include "apps/inspect/inspect.h"
#include "distill/evaluation/evaluate_text.h"

namespace brine {
namespace {

struct Inspect {
  std::string target, capture;
  CaptureInput input;
  distill::AttentionPath path = distill::AttentionPath::sparse;
  int64_t k = 0;
  bool verify = false, tensors = false;

  void describe(data::Schema& s) {
    s.field("target", target, "Dump, run, checkpoint, model, tokenizer, safetensors or HDF5 file",
            {.required = true, .positional = true});
    s.field("verify", verify, "Compare the checksums of a dump");
    s.field("tensors", tensors, "List the tensors of a model");
    s.field("capture", capture, "New HDF5 file for every intermediate of one forward pass");
    s.field("text", input.text, "Capture: this text; an encoder's with its [CLS] and [SEP]");
    s.field("tokens", input.tokens, "Capture: these token ids, 1,2,3");
    s.field("data", input.data, "Capture: a window of these text files");
    s.field("window", input.window, "Capture: which window of the text files", {.min = 0});
    s.field("sequence_length", input.sequence_length,
            "Capture: tokens of a window; 0 = the model's positions", {.min = 0});
    s.field("k", k, "Capture: kept keys per query and head; 0 = as trained", {.min = 0});
    s.choice("path", path, distill::kAttentionPaths,
             "Capture: dense is the T x T reference, of flash attention too");
  }

  int run(const RunContext& context);
};

int Inspect::run(const RunContext& context) {
  if (capture.empty()) {
    refuse_unused(context, {"text", "tokens", "data", "window", "sequence_length", "k", "path"},
                  "without --capture");
    std::cout << inspect(target, {.verify = verify, .tensors = tensors});
    return 0;
  }
  refuse_unused(context, {"verify", "tensors"}, "with --capture");
  if (input.data.empty()) refuse_unused(context, {"window", "sequence_length"}, "without --data");
  nn::LoadedModel m = nn::load_model(target, {.map = true});
  if (!m.model->attention_traits().sparse)
    refuse_unused(context, {"k"},
                  "on attention '" + m.config.attention + "', which keeps every key");
  const bool dense = path == distill::AttentionPath::dense;
  if (dense && m.config.attention == "flash") {  // it makes no maps
    m.config.attention = "dense";
    m.model = nn::make_student(m.config, *m.model, 0);
  }
  const std::vector<int32_t> sequence = capture_ids(input, m);
  brine::capture(m, {.ids = sequence, .dials = {.k = k, .dense_path = dense}, .model = m.directory},
                 capture);
  log_info(capture, ": ", sequence.size(), " tokens through ", m.config.shape().layers,
           " layers of ", m.config.attention);
  return 0;
}

const RegisterSubcommand<Inspect> registration("inspect", "Describe a path; capture a pass");

}  // namespace
}  // namespace brine
