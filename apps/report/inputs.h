// What a report is made from: paths on the command line, recognised by their content.
#pragma once

#include <string>
#include <vector>

#include "apps/report/charts.h"

namespace brine::report {

// A directory with the log of a training run.
struct RunInput {
  std::string path, name;
  std::vector<distill::LogRecord> log;  // empty: it has none
  std::string made;                     // for people: command, events, configuration
};
struct ModelInput {
  std::string path, name;
};

struct Inputs {
  std::vector<RunInput> runs;
  std::vector<ModelInput> models;  // that a text can go through, runs with a checkpoint too
  Charts sweeps;
};

// Reads everything but models. Names are the last parts of the paths, as many as
// distinguish them. Throws in one line for a path that is none of these, and for a damaged log
// or table.
Inputs read_inputs(const std::vector<std::string>& paths);

}  // namespace brine::report
