// The log of a run: one line of JSON is one write, so that a killed run damages at most its last
// line. Reading it.
#include "distill/log/log.h"
#include "data/io/json.h"
#include "data/io/utf8.h"

#include <cerrno>
#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

namespace brine::distill {
namespace {

using nlohmann::ordered_json;

ordered_json head(LogLine type, int64_t step) {
  using namespace std::chrono;
  double time = double(duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count());
  return {{"type", data::name_of(type, kLogLines)}, {"step", step}, {"time", time / 1000}};
}

void add_values(ordered_json& line, const Values& values) {
  for (const auto& [name, value] : values) {
    check(!line.contains(name), "log: the name '", name, "' is reserved or given twice");
    if (std::isfinite(value)) {
      line[name] = value;
    } else {
      line[name] = std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
    }
  }
}

Values with_prefix(const std::string& prefix, const Values& values) {
  Values named;
  named.reserve(values.size());
  for (const auto& [name, value] : values) named.emplace_back(prefix + name, value);
  return named;
}

// Moves an earlier log to the first free LOG.1, LOG.2...
void set_aside(const data::Path& log) {
  if (!std::filesystem::exists(log)) return;
  for (int i = 1;; ++i) {
    data::Path aside = log.string() + "." + std::to_string(i);
    if (std::filesystem::exists(aside)) continue;
    if (std::rename(log.c_str(), aside.c_str()) != 0) data::throw_io(log, "move", errno);
    return;
  }
}

void create_run_dir(const data::Path& run_dir) {
  std::error_code error;
  std::filesystem::create_directories(run_dir, error);
  if (error) data::throw_io(run_dir, "create", error.value());
}

void write_line(std::FILE* file, const data::Path& path, const ordered_json& line) {
  std::string text = printable_json(line) + "\n";
  bool ok = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (!ok || std::fflush(file) != 0) data::throw_io(path, "write", errno);
}

}  // namespace

RunLog::RunLog(const data::Path& run_dir, std::ostream& terminal, const LogConfig& config)
    : path_((create_run_dir(run_dir), run_dir / "log.jsonl")),
      file_(nullptr, std::fclose),
      step_(config.resume_step.value_or(0)),
      progress_(terminal, config.progress),
      events_(run_dir, config.resume_step ? step_ + 1 : 0) {
  int unreadable = 0;
  if (config.resume_step) {
    unreadable = trim_log(path_, step_);
  } else {
    set_aside(path_);
  }
  file_.reset(std::fopen(path_.c_str(), "ae"));
  if (!file_) data::throw_io(path_, "open", errno);
  if (unreadable > 0) event(join("log.jsonl: dropped ", unreadable, " unreadable lines"));
}

void RunLog::step(const StepReport& report) {
  double seconds = progress_.step(report);
  step_ = report.step;
  double rate = seconds > 0 ? double(report.tokens) / seconds : 0;
  ordered_json line = head(LogLine::step, report.step);
  line["total"] = report.total;
  line["seconds"] = seconds;
  line["tokens"] = report.tokens;
  line["tokens_per_second"] = rate;
  add_values(line, report.mask);
  add_values(line, report.values);
  write_line(file_.get(), path_, line);
  Values scalars = with_prefix("train/", report.values);
  for (const auto& value : with_prefix("train/", report.mask)) scalars.push_back(value);
  scalars.emplace_back("train/tokens_per_second", rate);
  events_.scalars(report.step, scalars);
}

void RunLog::evaluation(int64_t step, const Values& values) {
  ordered_json line = head(LogLine::evaluation, step);
  add_values(line, values);
  write_line(file_.get(), path_, line);
  events_.scalars(step, with_prefix("eval/", values));
  Values shown = values;
  std::erase_if(shown, [](const auto& value) { return value.first.rfind("layer.", 0) == 0; });
  progress_.line(join("step ", step, "  evaluation: ", describe_values(shown)));
}

void RunLog::event(std::string_view text) {
  ordered_json line = head(LogLine::event, step_);
  line["text"] = text;
  write_line(file_.get(), path_, line);
  progress_.line(text);
}

std::optional<LogLine> type_of(const data::Json& line) {
  if (!line.is_object()) return std::nullopt;
  const auto type = line.find("type");
  if (type == line.end() || !type->is_string()) return std::nullopt;
  return data::value_of(type->get_ref<const std::string&>(), kLogLines);
}

int trim_log(const data::Path& log, int64_t last_step) {
  if (!std::filesystem::is_regular_file(log)) return 0;  // none yet, or a pipe
  const std::string text = data::read_file(log);
  std::string kept;
  int unreadable = 0;
  for (size_t at = 0; at < text.size();) {
    size_t end = text.find('\n', at);
    bool torn = end == text.npos;
    std::string_view line = std::string_view(text).substr(at, torn ? text.npos : end - at);
    at = torn ? text.size() : end + 1;
    ordered_json json = parse_json_or_discard(line);
    bool readable =
        !torn && json.is_object() && json.contains("step") && json["step"].is_number_integer();
    unreadable += !readable && !torn;
    if (readable && json["step"].get<int64_t>() <= last_step) kept.append(line).append("\n");
  }
  if (kept != text) data::write_file_atomic(log, kept);
  return unreadable;
}

bool has_evaluation(const data::Path& run_dir, int64_t step) {
  const data::Path log = run_dir / "log.jsonl";
  if (!std::filesystem::is_regular_file(log)) return false;
  std::istringstream lines(data::read_file(log));
  for (std::string line; std::getline(lines, line);) {
    ordered_json json = parse_json_or_discard(line);
    if (type_of(json) == LogLine::evaluation && json.value("step", int64_t(-1)) == step)
      return true;
  }
  return false;
}

namespace {

// "nan", "inf" and "-inf" are what RunLog writes for them.
std::optional<double> number(const data::Json& value) {
  if (value.is_number()) return value.get<double>();
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (value == "inf") return std::numeric_limits<double>::infinity();
  if (value == "-inf") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

LogRecord record_of(const data::Json& line, const std::string& where) {
  const std::optional<LogLine> type = type_of(line);
  check_format(type.has_value(), where, ": is not a line of a log");
  const bool has_step = line.contains("step") && line["step"].is_number_integer();
  check_format(has_step, where, ": a line of a log without a step");
  LogRecord out{.type = *type, .step = line["step"].get<int64_t>()};
  for (const auto& [name, value] : line.items()) {
    if (name == "type" || name == "step") continue;
    if (name == "text" && value.is_string()) {
      out.text = value.get<std::string>();
      continue;
    }
    const std::optional<double> x = number(value);
    check_format(x.has_value(), where, ": ", data::shown(name), " is not a number");
    if (name == "time") {
      out.time = *x;
    } else {
      out.values.emplace_back(name, *x);
    }
  }
  return out;
}

}  // namespace

std::vector<LogRecord> read_log(const data::Path& file) {
  const std::string text = data::read_file(file, uint64_t(1) << 30);
  std::vector<LogRecord> out;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == text.npos) break;
    const std::string where = join(file.string(), ":", ++number);
    const data::Json line = parse_json_or_discard(text.substr(begin, end - begin), where);
    check_format(!line.is_discarded(), where, ": is not JSON");
    out.push_back(record_of(line, where));
    begin = end + 1;
  }
  return out;
}

}  // namespace brine::distill
