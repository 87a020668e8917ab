// Training runs on the command line: log, progress bar, signals and exit status.
#pragma once

#include <functional>
#include <memory>

#include "apps/cli/program.h"
#include "distill/runs/training_run.h"

namespace brine {

using Prepare = std::function<std::unique_ptr<distill::TrainingRun>(const distill::RunHost&)>;

// Trains the run that `prepare` makes.
distill::RunResult run_training(const RunContext& context, const distill::RunOptions& options,
                                const Prepare& prepare);
// 0, or 130 when a signal ended the run early (its checkpoint is saved).
int exit_status(const distill::RunResult& result);

// A subcommand that trains one run, which `What` describes.
template <class What>
struct TrainingCommand {
  What what;
  distill::RunOptions options;

  void describe(data::Schema& s) {
    what.describe(s);
    options.describe(s);
  }
  int run(const RunContext& context) {
    return exit_status(run_training(context, options, [&](const distill::RunHost& host) {
      return prepare(what, options, host);
    }));
  }
};

}  // namespace brine
