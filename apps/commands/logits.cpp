// brine logits: a model's logits as a file, to be compared with those of another program.
#include "apps/logits/logits.h"

#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/cli/unused_flags.h"
#include "apps/terminal/terminal.h"
#include "distill/runs/training_run.h"

namespace brine {
namespace {

struct Logits {
  std::string model;
  LogitRequest what;
  bool json = false;

  void describe(data::Schema& s) {
    s.field("model", model, "Model directory or run", {.required = true});
    what.describe(s);
    s.field("json", json, "Print one JSON object, with the token ids");
  }

  int run(const RunContext& context) {
    what.validate();
    if (what.data.empty())
      refuse_unused(context, {"sequence_length", "max_windows"}, "without --data");
    WarningList warnings(json);
    nn::LoadedModel m = distill::load_model(model, log_messages());
    const std::unique_ptr<data::Tokenizer> tokenizer = distill::tokenizer_of(m, log_messages());
    distill::use_attention(m, what.attention);
    refuse_unused_options(context, *m.model);
    data::Json out = write_logits(m, *tokenizer, what, log_messages());
    log_info(what.out, ": logits ", json_text(out["shape"]), " of attention ", m.config.attention);
    if (const auto said = warnings.take(); !said.empty()) out["warnings"] = said;
    if (json) {
      out["model"] = model;
      std::cout << json_text(out) << std::endl;
    }
    return 0;
  }
};

const RegisterSubcommand<Logits> registration(
    "logits", "Write the logits of a text to a file",
    {"brine logits --model RUN --prompt \"In the beginning\" --out logits.safetensors",
     "docs/transformers.md"});

}  // namespace
}  // namespace brine
