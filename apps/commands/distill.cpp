// brine distill: a student with another attention method learns from a teacher.
#include "apps/cli/training.h"
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
    distill::RunResult result;
    for (const distill::StagePlan& plan : distill::plan_stages(what, options)) {
      result = run_training(context, plan.options, [&](const distill::RunHost& host) {
        return distill::prepare(what, plan, host);
      });
      if (result.interrupted || result.out_of_time) break;
    }
    return exit_status(result);
  }
};

const RegisterSubcommand<Distill> registration(
    "distill", "Distil a teacher into a student with sparse attention",
    {"brine distill --teacher MODEL --data book.txt --attention blocks --out RUN",
     "docs/distillation.md"},
    Ranks::divided);

}  // namespace
}  // namespace brine
