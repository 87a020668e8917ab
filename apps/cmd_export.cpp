// brine export: a checkpoint or run as a Hugging Face style directory.
#include "apps/program.h"
#include "apps/terminal.h"
#include "apps/training.h"
#include "distill/model_io.h"

namespace brine {
namespace {

struct Export {
  std::string checkpoint, out;

  void describe(nn::Schema& s) {
    s.field("checkpoint", checkpoint, "Run, checkpoint or model directory", {.required = true});
    s.field("out", out, "Directory to write", {.required = true});
  }

  int run(const RunContext&) {
    distill::LoadedModel m = distill::load_model(checkpoint);
    warn_of(m);
    std::unique_ptr<data::Tokenizer> tokenizer = distill::tokenizer_of(m.directory);
    distill::export_model(m.config, *m.model, tokenizer.get(), out);
    log_info(out, ": ", m.config.attention, " model of ",
             human_count(double(nn::parameter_count(*m.model))), " parameters from ", m.directory);
    return 0;
  }
};
const RegisterSubcommand<Export> registration("export",
                                              "Write a model as Hugging Face style directory");

}  // namespace
}  // namespace brine
