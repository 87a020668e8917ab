// brine distill: a student with another attention method learns from a teacher.
#include "apps/cli/training.h"
#include "apps/cli/unused_flags.h"
#include "distill/runs/distillation.h"

namespace brine {
namespace {

struct Distill {
  distill::Distillation what;
  distill::RunOptions options;

  void describe(data::Schema& s) {
    what.describe(s);
    options.describe(s);
  }

  int run(const RunContext& context) {
    if (what.on_task()) {
      refuse_unused(context,
                    {"valid", "copies", "loss_from", "top_logits", "lengths", "retrieval_share"},
                    "on a task", Given::non_default);
    } else {
      refuse_unused(context, {"train_split", "valid_split", "labels", "epochs", "warmup_ratio"},
                    "without --task", Given::non_default);
    }
    return run_training(context, what.recipe.training, options, [&](const distill::RunHost& host) {
      return distill::prepare(what, options, host);
    });
  }
};

const RegisterSubcommand<Distill> registration(
    "distill", "Distil a teacher into a student with SEA",
    {"brine distill --teacher TEACHER --dump DUMP --out RUN --attention sea", "docs/guide.md"},
    Ranks::divided);

}  // namespace
}  // namespace brine
