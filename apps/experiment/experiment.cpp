// Finding an experiment's file; its steps run or drawn.
#include "apps/experiment/experiment.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/experiment/render.h"
#include "data/io/directory_lock.h"

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
    out += rows.has(step) ? "done " : "     ";
    out += step.name + ":";
    for (const std::string& word : step.command(runs)) out += " " + word;
    if (!step.lines.empty()) out += " lines of " + step.lines;
    out += "\n";
  }
  return out;
}

}  // namespace

void Request::describe(data::Schema& s) {
  s.field("name", name, "Experiment of configs/experiments, or a TOML file", {.positional = true});
  s.choice("scale", scale, kScales,
           "small: what two cores finish in a night; paper: the paper's own setting");
  s.field("out", out, "Directory of rows, runs, tables; none: runs/experiments/NAME-SCALE");
  s.field("set", set, "NAME=VALUE: variables of the file");
  s.field("jobs", jobs, "Runs side by side", {.min = 1});
  s.field("render", render, "Only draw tables and figures from the rows that are there");
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
  const bool runs_something = !request.render && !request.plan;
  const Plan plan = read_plan({.file = file_of(request.name),
                               .scale = data::name_of(request.scale, kScales),
                               .set = request.set,
                               .files_exist = runs_something});
  how.directory = request.out.empty()
                      ? fs::path("runs/experiments") / (plan.name + "-" + plan.scale)
                      : fs::path(request.out);
  Outcome out;
  if (!runs_something) {
    const Rows rows(how.directory);
    check(request.plan || !rows.all().empty(), "experiment: ", how.directory.string(),
          " has no rows yet");
    out.page = request.plan ? commands(plan, rows, (how.directory / "runs").string())
                            : render(plan, rows.newest(), how.directory);
    return out;
  }
  fs::create_directories(how.directory);
  const data::DirectoryLock lock(how.directory, "is running this experiment");
  Rows rows(how.directory);
  out.finished = execute(plan, rows, how);
  if (!rows.all().empty()) out.page = render(plan, rows.newest(), how.directory);
  return out;
}

}  // namespace brine::experiment
