// brine finetune: trains a pretrained (or new) encoder on a task; it becomes the teacher of
// `distill --task`.
#include "apps/cli/training.h"
#include "distill/runs/finetuning.h"

namespace brine {
namespace {

struct Finetune {
  distill::Finetuning what;
  distill::RunOptions options;

  void describe(data::Schema& s) {
    what.describe(s);
    options.describe(s);
  }

  int run(const RunContext& context) {
    return exit_status(run_training(context, options, [&](const distill::RunHost& host) {
      return distill::prepare(what, options, host);
    }));
  }
};

const RegisterSubcommand<Finetune> registration(
    "finetune", "Train an encoder on a task (GLUE, your files, WordNet, books, Long Range Arena)",
    {"brine finetune --task cola --data GLUE --model BERT --out TEACHER", "docs/guide.md"},
    Ranks::divided);

}  // namespace
}  // namespace brine
