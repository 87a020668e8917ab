// Finding an experiment's file; its steps run or printed; the results for people.
#include "apps/experiment/experiment.h"

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/io/directory_lock.h"
#include "data/io/json.h"

namespace brine::experiment {
namespace {

namespace fs = std::filesystem;

constexpr data::Named<Scale> kScales[] = {{Scale::small, "small"}, {Scale::paper, "paper"}};

// Next to the working directory, or where an installed program has them.
fs::path folder() {
  const fs::path local = "configs/experiments";
  if (fs::is_directory(local)) return local;
  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path();
  return program.parent_path() / "share/brine/configs/experiments";
}

std::string file_of(const std::string& name) {
  if (!name.empty() && fs::is_regular_file(name)) return name;
  const fs::path file = folder() / (name + ".toml");
  if (!name.empty() && fs::is_regular_file(file)) return file.string();
  std::string known;
  for (const std::string& one : experiment_names()) known += " " + one;
  throw Error(join("experiment: ", name.empty() ? "a name is needed" : "there is no " + name,
                   "; known are", known.empty() ? " none" : known, ", or a TOML file"));
}

std::string commands(const Plan& plan, const Rows& rows, const std::string& runs) {
  std::string out;
  for (const Step& step : plan.steps) {
    out += rows.of(step).empty() ? "     " : "done ";
    out += step.name + ":";
    for (const std::string& word : step.command(runs)) out += " " + word;
    if (!step.lines.empty()) out += " lines of " + step.lines;
    out += "\n";
  }
  return out;
}

// A line for each row with values.
std::string results(const Plan& plan, const Rows& rows) {
  size_t width = 0;
  for (const Step& step : plan.steps) width = std::max(width, step.name.size());
  std::ostringstream out;
  for (const Step& step : plan.steps) {
    if (step.makes_directory()) continue;
    for (const Row& row : rows.of(step)) {
      out << std::left << std::setw(int(width)) << step.name << std::right;
      for (const auto& [name, value] : row.at("values").items()) {
        const std::string text =
            value.is_number_float() ? join(value.get<double>()) : json_text(value);
        out << "  " << name << " " << std::setw(10) << text;
      }
      out << "\n";
    }
  }
  return out.str();
}

}  // namespace

void Request::describe(data::Schema& s) {
  s.field("name", name, "Experiment of configs/experiments, or a TOML file", {.positional = true});
  s.choice("scale", scale, kScales,
           "small: what two cores finish in a night; paper: the paper's own setting");
  s.field("out", out, "Directory of rows, runs, logs; none: runs/experiments/NAME-SCALE");
  s.field("set", set, "NAME=VALUE: variables of the file");
  s.field("jobs", jobs, "Runs side by side", {.min = 1});
  s.field("plan", plan, "Only print the commands");
}

std::vector<std::string> experiment_names() {
  std::vector<std::string> names;
  if (!fs::is_directory(folder())) return names;
  for (const auto& entry : fs::directory_iterator(folder())) {
    if (entry.path().extension() == ".toml") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Outcome run(Request request, Execution how) {
  const Plan plan = read_plan({.file = file_of(request.name),
                               .scale = data::name_of(request.scale, kScales),
                               .set = request.set,
                               .files_exist = !request.plan});
  how.directory = request.out.empty()
                      ? fs::path("runs/experiments") / (plan.name + "-" + plan.scale)
                      : fs::path(request.out);
  if (request.plan)
    return {.text = commands(plan, Rows(how.directory), (how.directory / "runs").string())};
  fs::create_directories(how.directory);
  const data::DirectoryLock lock(how.directory, "is running this experiment");
  Rows rows(how.directory);
  const bool finished = execute(plan, rows, how);
  return {.text = results(plan, rows), .finished = finished};
}

}  // namespace brine::experiment
