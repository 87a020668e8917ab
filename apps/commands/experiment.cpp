// brine experiment: the runs of a table or figure, and their results as rows.
#include <iostream>

#include "apps/cli/program.h"
#include "apps/experiment/experiment.h"
#include "apps/terminal/commit.h"
#include "apps/terminal/stop_signals.h"
#include "apps/terminal/terminal.h"
#include "tensor/device/device.h"

namespace brine {
namespace {

struct ExperimentCommand {
  experiment::Request what;

  void describe(data::Schema& s) { what.describe(s); }

  int run(const RunContext&) {
    StopSignals signals;
    const experiment::Execution how{.directory = what.out,
                                    .commit = commit_name(),
                                    .threads = threads(),
                                    .jobs = what.jobs,
                                    .stopped = [&] { return !signals.name().empty(); },
                                    .say = [](const std::string& line) { log_info(line); }};
    const experiment::Outcome outcome = experiment::run(what, how);
    std::cout << outcome.text;
    if (outcome.finished) return 0;
    log_info("experiment: stopped by ", signals.name(), "; the same command continues it");
    return 1;
  }
};

const RegisterSubcommand<ExperimentCommand> registration(
    "experiment", "Run what a table or figure needs, keep its rows",
    {"brine experiment perplexity --plan", "docs/experiments.md"});

}  // namespace
}  // namespace brine
