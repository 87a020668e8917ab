// Recognising runs, models and tables.
#include "apps/report/inputs.h"

#include <algorithm>
#include <fstream>
#include <set>

#include "data/checkpoint/checkpoint.h"
#include "data/gguf/gguf_file.h"
#include "data/io/file_io.h"

namespace brine::report {
namespace {

namespace fs = std::filesystem;

std::string beginning(const fs::path& file, size_t bytes) {
  std::ifstream in(file, std::ios::binary);
  std::string text(bytes, '\0');
  in.read(text.data(), std::streamsize(bytes));
  text.resize(size_t(in.gcount()));
  return text;
}

// The last `parts` parts of a path.
std::string last_parts(const std::string& path, size_t parts) {
  fs::path whole = fs::path(path).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();  // "runs/a/"
  fs::path out;
  for (size_t i = 0; i < parts && whole.has_filename(); ++i) {
    out = out.empty() ? whole.filename() : whole.filename() / out;
    whole = whole.parent_path();
  }
  return out.empty() ? path : out.string();
}

std::vector<std::string> names_of(const std::vector<std::string>& paths) {
  constexpr size_t kMostParts = 8;
  std::vector<std::string> names;
  for (size_t parts = 1; parts <= kMostParts; ++parts) {
    names.clear();
    for (const std::string& path : paths) names.push_back(last_parts(path, parts));
    if (std::set<std::string>(names.begin(), names.end()).size() == names.size()) return names;
  }
  return paths;
}

RunInput read_run(const std::string& path, const std::string& name) {
  RunInput run{.path = path, .name = name, .log = {}, .made = {}};
  const fs::path dir(path), log = dir / "log.jsonl", settings = dir / "config.toml";
  if (fs::exists(log)) run.log = distill::read_log(log);
  run.made = join(path, ", ", run.log.size(), " lines of log\n");
  std::string configuration;
  if (fs::exists(settings)) configuration = data::read_file(settings, 1 << 20);
  // Its first line names the command: "# brine distill, version 0.1.0".
  const std::string start = "# brine ";
  if (configuration.starts_with(start)) {
    const size_t end = configuration.find_first_of(",\n", start.size());
    run.made += "brine " + configuration.substr(start.size(), end - start.size()) + " --config " +
                settings.string() + "\n";
  }
  for (const distill::LogRecord& record : run.log) {
    if (!record.text.empty()) run.made += join("step ", record.step, ": ", record.text, "\n");
  }
  run.made += "\n" + configuration;
  return run;
}

void read_file_input(Inputs& out, const std::string& path, const std::string& name) {
  const std::string start = beginning(path, 64);
  if (data::is_gguf(path)) {
    out.models.push_back({path, name});
  } else if (is_sweep(start)) {
    for (Chart& chart : sweep_charts(path, data::read_file(path, 1 << 24)))
      out.sweeps.push_back(std::move(chart));
  } else {
    throw Error(path + ": neither a GGUF model nor a table of brine sweep");
  }
}

void read_directory(Inputs& out, const std::string& path, const std::string& name) {
  const fs::path dir(path);
  const bool trained = !data::list_checkpoints(dir).empty();
  if (trained || fs::exists(dir / "log.jsonl")) out.runs.push_back(read_run(path, name));
  if (trained || fs::exists(dir / "config.json")) {
    out.models.push_back({path, name});
  } else {
    check(fs::exists(dir / "log.jsonl"), path, ": contains no run and no model");
  }
}

}  // namespace

Inputs read_inputs(const std::vector<std::string>& paths) {
  Inputs out;
  const std::vector<std::string> names = names_of(paths);
  for (size_t i = 0; i < paths.size(); ++i) {
    check(fs::exists(paths[i]), paths[i], ": no such file or directory");
    if (fs::is_directory(paths[i])) {
      read_directory(out, paths[i], names[i]);
    } else {
      read_file_input(out, paths[i], names[i]);
    }
  }
  return out;
}

}  // namespace brine::report
