// brine convert: a pretrained model becomes a student with SEA, in stages.
#include "apps/cli/training.h"
#include "apps/cli/unused_flags.h"
#include "distill/stages/conversion.h"

namespace brine {
namespace {

struct Convert {
  distill::Conversion what;
  distill::RunOptions options;

  void describe(data::Schema& s) {
    what.describe(s);
    options.describe(s);
  }

  int run(const RunContext& context) {
    refuse_unused(context, {"loss_from", "recompute", "optimizer.learning_rate"},
                  "in stage attention", Given::non_default);
    for (const distill::StagePlan& plan : distill::plan_stages(what, options)) {
      const int status = run_training(
          context, what.training, plan.options,
          [&](const distill::RunHost& host) { return distill::prepare(what, plan, host); });
      if (status != 0) return status;
    }
    return 0;
  }
};

const RegisterSubcommand<Convert> registration(
    "convert", "Convert a pretrained model into a student with SEA, layer by layer");

}  // namespace
}  // namespace brine
