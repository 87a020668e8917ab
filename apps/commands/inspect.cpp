// brine inspect: describes a path; with --capture it writes the intermediates of one forward pass.
#include "apps/inspect/inspect.h"

#include <iostream>

#include "apps/cli/unused_flags.h"
#include "apps/inspect/capture_input.h"
#include "apps/terminal/terminal.h"

namespace brine {
namespace {

struct Inspect {
  std::string target, capture, tokenizer;
  CaptureInput input;
  bool verify = false, tensors = false;

  void describe(data::Schema& s) {
    s.field("target", target, "Dump, run, checkpoint, model, tokenizer, or a file: GGUF, text",
            {.required = true, .positional = true});
    s.field("verify", verify, "Compare every checksum of a dump or of token shards");
    s.field("tensors", tensors, "List the tensors of a model");
    s.field("tokenizer", tokenizer,
            "Tokenizer directory: counts a text's tokens, prints its corpus_hash");
    s.field("capture", capture, "New HDF5 file for every intermediate of one forward pass");
    input.describe(s);
  }

  int run(const RunContext& context) {
    if (capture.empty()) {
      refuse_unused(context, {"text", "tokens", "data", "window", "sequence_length", "k", "path"},
                    "without --capture");
      std::cout << inspect(target, {.verify = verify, .tensors = tensors, .tokenizer = tokenizer});
      return 0;
    }
    refuse_unused(context, {"verify", "tensors", "tokenizer"}, "with --capture");
    if (input.data.empty()) refuse_unused(context, {"window", "sequence_length"}, "without --data");
    nn::LoadedModel m = nn::load_model(target, {.map = true});
    if (!m.model->attention_traits().sparse)
      refuse_unused(context, {"k"},
                    "on attention '" + m.config.attention + "', which keeps every key");
    const CaptureCall call = capture_call(input, m);
    brine::capture(m, call, capture);
    log_info(capture, ": ", call.ids.size(), " tokens through ", m.config.shape().layers,
             " layers of ", m.config.attention);
    return 0;
  }
};

const RegisterSubcommand<Inspect> registration("inspect", "Describe a path; capture a pass",
                                               {"brine inspect RUN", "docs/guide.md"});

}  // namespace
}  // namespace brine
