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

}  // namespace brine
