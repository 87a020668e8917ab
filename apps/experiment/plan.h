// An experiment: runs of this program, and the numbers that are taken from what they print, as a
// TOML file describes them (docs/experiments.md).
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace brine::experiment {

using Variables = std::map<std::string, std::string>;

// The text with the directory of the runs for {runs}.
std::string with_runs(std::string text, const std::string& runs);

// One run of the program.
struct Step {
  std::string id;                  // of its entry in the file: "perplexity"
  std::string name;                // of the step: "perplexity-sea-2"
  std::vector<std::string> words;  // the program's arguments, with {runs} for the runs' directory
  Variables axes;                  // the values of its entry's axes
  // Values by JSON pointers into the output. None: the step makes the directory {runs}/NAME.
  Variables take;
  std::string rows;  // pointer to the array whose elements `take` applies to; empty: the output
  std::vector<std::string> needs;  // definitions of the steps whose directories it reads
  std::string lines;               // instead of the output this file of JSON lines, with {runs}

  bool makes_directory() const { return take.empty(); }
  // The words with the directory of the runs.
  std::vector<std::string> command(const std::string& runs) const;
  // SHA-256 of everything that decides the result.
  std::string definition() const;
};

struct Plan {
  std::string name, scale;
  std::vector<Step> steps;
};

struct PlanRequest {
  std::string file;  // configs/experiments/NAME.toml
  std::string scale = "small";
  std::vector<std::string> set;  // NAME=VALUE, over the variables of the file
  bool files_exist = true;       // check that the file's [files] are there
};

// Throws Error("FILE: ...") for an unknown key, a variable without a value, two steps of one name,
// and a missing file of [files], with the command that fetches it.
Plan read_plan(const PlanRequest& request);

}  // namespace brine::experiment
