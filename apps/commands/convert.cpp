// brine convert: a pretrained model becomes a student with SEA, in stages.
#include "apps/cli/training.h"
#include "apps/cli/unused_flags.h"
#include "distill/runs/stages/conversion.h"

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
    if (!what.has(distill::Stage::joint))
      refuse_unused(context, {"joint.lora_rank", "joint.recompute"},
                    "without stage joint (--joint-steps N or --stages attention,joint)",
                    Given::non_default);
    if (!what.has(distill::Stage::attention) && !what.joint.steps)
      refuse_unused(context, {"steps"}, "with --stages joint, whose steps are --joint-steps",
                    Given::non_default);
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
    "convert", "Convert a pretrained model into a student with SEA, layer by layer",
    {"brine convert --teacher smollm2.gguf --data book.txt --out RUN", "docs/conversion.md"},
    Ranks::divided);

}  // namespace
}  // namespace brine
