// Running the steps of an experiment, each as a process of this program.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "apps/experiment/rows.h"

namespace brine::experiment {

struct Execution {
  std::filesystem::path directory;  // rows.jsonl, runs/NAME, logs/NAME.{json,log}
  std::string commit;               // of the program
  int64_t threads = 1, jobs = 1;    // of each process; processes at once
  std::function<bool()> stopped;    // asked several times a second
  std::function<void(const std::string&)> say;
};

// Runs every step that has no row yet, in order; steps of one entry side by side if jobs > 1. A
// directory with a checkpoint is continued, which the step refuses for other settings. -> whether
// it ran to the end: a stop is passed on to the processes, which save and end. Throws when a step
// fails, with its last line; the rows of steps that ended before are kept.
bool execute(const Plan& plan, Rows& rows, const Execution& how);

// The CPU's name and the number of threads: "AMD EPYC 9B14, 2 threads".
std::string machine_name(int64_t threads);

}  // namespace brine::experiment
