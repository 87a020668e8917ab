// One experiment as the command line asks for it.
#pragma once

#include <string>
#include <vector>

#include "apps/experiment/execute.h"
#include "data/config/schema.h"

namespace brine::experiment {

enum class Scale { small, paper };

struct Request {
  std::string name;  // of configs/experiments, or a file
  std::string out;   // empty: runs/experiments/NAME-SCALE
  Scale scale = Scale::small;
  std::vector<std::string> set;
  int64_t jobs = 1;
  bool plan = false;  // only print the commands

  void describe(data::Schema& s);
};

struct Outcome {
  std::string text;  // the results; with `plan` the commands
  bool finished = true;
};

// The names in the directory of experiments.
std::vector<std::string> experiment_names();
// `how.directory` is that of the request.
Outcome run(Request request, Execution how);

}  // namespace brine::experiment
