// brine train: next-token prediction, with a new model or another one's weights.
#include "apps/cli/training.h"
#include "distill/runs/pretraining.h"

namespace brine {
namespace {

struct Train {
  distill::Pretraining what;
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

const RegisterSubcommand<Train> registration(
    "train", "Train a language model on text",
    {"brine train --tokenizer TOK --train book.txt --out TEACHER", "docs/guide.md"},
    Ranks::divided);

}  // namespace
}  // namespace brine
