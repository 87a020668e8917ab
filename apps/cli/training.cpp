// Training runs on the command line: log, progress bar, signals and exit status.
#include "apps/cli/training.h"

#include <unistd.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/cli/ranks.h"
#include "apps/terminal/stop_signals.h"
#include "apps/terminal/terminal.h"
#include "data/io/human.h"
#include "data/io/json.h"

namespace brine {

distill::RunResult run_training(const RunContext& context, const distill::RunOptions& options,
                                const Prepare& prepare) {
  Communicator& ranks = process_ranks({.seconds = options.rank_seconds, .nccl = options.nccl});
  const bool bar = is_terminal() && !context.quiet;
  distill::RunHost host{
      .seed = context.seed,
      .messages = ranks.is_first() ? log_messages() : distill::Messages(),
      .configuration = [&] { return json_text(context.keys.to_json()); },
      .save_configuration = [&](const std::string& dir) { save_configuration(context, dir); },
      .progress = {.every_seconds = context.quiet ? 1e9 : 10,
                   .columns = bar ? terminal_columns(STDERR_FILENO) : 0},
      .terminal = &std::cerr,
      .ranks = &ranks,
      .program = "brine " BRINE_VERSION " of commit " + commit_name()};
  const std::unique_ptr<distill::TrainingRun> run = prepare(host);
  // A run ends at its next step, a dry run at once.
  std::optional<StopSignals> signals;
  if (!options.dry_run) signals.emplace();
  host.stop = [&signals] { return signals ? signals->name() : std::string(); };
  const distill::RunResult result = distill::train(*run, options, host);
  std::cout << result.dry_run;
  return result;
}

int exit_status(const distill::RunResult& result) { return result.interrupted ? 130 : 0; }

}  // namespace brine
