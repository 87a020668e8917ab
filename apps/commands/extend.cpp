// brine extend: a model for longer inputs than it was trained for.
#include "nn/io/extend.h"
#include "apps/cli/program.h"
#include "apps/terminal/terminal.h"
#include "distill/runs/training_run.h"

namespace brine {
namespace {

struct Extend {
  std::string model, out;
  int64_t positions = 0;

  void describe(data::Schema& s) {
    s.field("model", model, "Model directory or run", {.required = true});
    s.field("positions", positions, "Positions of the new model",
            {.min = 2, .max = 1 << 30, .required = true});
    s.field("out", out, "Directory to write", {.required = true});
  }

  int run(const RunContext&) {
    nn::LoadedModel m = distill::load_model(model, log_messages(), {.map = true});
    nn::LoadedModel longer = nn::extend_positions(m, positions);
    const std::unique_ptr<data::Tokenizer> tokenizer =
        distill::tokenizer_to_export(m, log_messages());
    nn::export_model(longer.config, *longer.model, tokenizer.get(), out);
    log_info(out, ": ", positions, " positions, ", m.config.shape().max_positions, " of ",
             m.directory,
             m.model->rotary_positions() ? ": rotary angles unchanged" : ": its table is resampled",
             "; train it at its new length (brine ",
             m.model->labels() > 0                   ? "finetune"
             : m.model->attention_traits().estimates ? "distill --teacher self"
             : m.config.shape().causal               ? "train"
                                                     : "finetune",
             " --model ", out, ")");
    return 0;
  }
};
const RegisterSubcommand<Extend> registration(
    "extend", "Give a model more positions",
    {"brine extend --model RUN --positions 4096 --out LONGER", "docs/guide.md"});

}  // namespace
}  // namespace brine
