// Commands for what a report lacks, from its request and its models.
#include "apps/report/missing.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "apps/cli/program.h"
#include "data/hdf5/hdf5_file.h"
#include "distill/evaluation/task_report.h"
#include "distill/runs/training_run.h"
#include "nn/models/model_costs.h"

namespace brine::report {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLength = 1024;  // of a window, if none was given
constexpr const char* kText = "TEXT";
constexpr const char* kRows = "runs/experiments/latency-small";

// A command line under construction.
class Command {
 public:
  explicit Command(const char* name) : line_(join("brine ", name)) {}
  Command& word(const std::string& word) {
    line_ += " " + shell_word(word);
    return *this;
  }
  // Nothing without values.
  template <class T>
  Command& list(const char* flag, const std::vector<T>& values) {
    if (!values.empty()) line_ += join(" --", flag);
    for (const T& value : values) word(join(value));
    return *this;
  }
  Command& text(const char* flag, const std::string& value) {
    return list(flag, value.empty() ? std::vector<std::string>() : std::vector{value});
  }
  Command& number(const char* flag, int64_t value, int64_t otherwise = 0) {
    return list(flag, value == otherwise ? std::vector<int64_t>() : std::vector{value});
  }
  Command& flag(const char* flag) {
    line_ += join(" --", flag);
    return *this;
  }
  const std::string& line() const { return line_; }

 private:
  std::string line_;
};

// A model that commands are about.
struct Subject {
  std::string path, method;
  bool causal = true, sparse = false, full = false;
  int64_t k = 0, positions = 0;
  data::Json configuration;  // of the run that made it; null: unknown
};

// The run of a checkpoint, which a capture names as its model; any other path as it is.
fs::path run_of(const std::string& path) {
  fs::path whole = fs::path(path).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  return fs::exists(whole / "trainer.json") && whole.has_parent_path() ? whole.parent_path()
                                                                       : whole;
}

std::optional<Subject> subject_of(const std::string& path) {
  if (!fs::exists(path)) return std::nullopt;
  try {
    const nn::ModelConfig config = nn::load_config(path);
    const nn::MetaModel model(config);
    const nn::ModelShape shape = config.shape();
    const data::Json k = distill::kept_keys_of(config, 0);
    return Subject{.path = path,
                   .method = config.attention,
                   .causal = shape.causal,
                   .sparse = model.model->attention_traits().sparse,
                   .full = nn::is_full_attention(config.attention),
                   .k = k.is_number_integer() ? k.get<int64_t>() : 0,
                   .positions = shape.max_positions,
                   .configuration = distill::stored_configuration(run_of(path).string())};
  } catch (const Error&) {  // it cannot be read: the commands have names in its place
    return std::nullopt;
  }
}

// A path with this ending that does not exist: commands refuse to replace files.
std::string unused(const std::string& name, const std::string& ending) {
  std::string path = name + ending;
  for (int number = 2; fs::exists(path); ++number) path = join(name, "-", number, ending);
  return path;
}

// The paths of a key of a run's configuration, if all of them exist.
std::vector<std::string> stored_paths(const data::Json& configuration, const char* key) {
  if (!configuration.is_object() || !configuration.contains(key)) return {};
  std::vector<std::string> out;
  const data::Json& value = configuration[key];
  if (value.is_string()) out.push_back(value.get<std::string>());
  if (value.is_array()) {
    for (const data::Json& each : value)
      if (each.is_string()) out.push_back(each.get<std::string>());
  }
  const bool all = std::all_of(out.begin(), out.end(), [](const std::string& path) {
    return !path.empty() && fs::exists(path);
  });
  return all ? out : std::vector<std::string>();
}

class Advice {
 public:
  Advice(Report& report, const Request& request) : report_(report), r_(request) {
    for (const ModelInput& input : report.inputs.models) add_subject(input.path);
    for (const ModelInput& input : report.inputs.captures) {
      const data::Hdf5Reader file(input.path);
      if (file.is_string_attribute("/", "model")) add_subject(file.string_attribute("/", "model"));
    }
    auto with_mask = std::find_if(subjects_.begin(), subjects_.end(),
                                  [](const Subject& each) { return each.sparse; });
    if (with_mask != subjects_.end()) {
      model_ = *with_mask;
    } else if (!subjects_.empty()) {
      model_ = subjects_[0];
    }
  }

  void attention() {
    const Inputs& in = report_.inputs;
    if (report_.attention.empty() && in.models.empty()) {
      without_weights();
    } else if (report_.attention.empty()) {
      miss("Maps of attention and mask health: no text was given",
           report_command(r_.inputs, {.adds_text = true}).line());
      const std::string file = unused("capture", ".h5");
      Command inspect("inspect");
      inspect.word(path()).text("capture", file);
      miss("Maps of an earlier pass: no capture was given",
           with_text(inspect, r_).line() + " && " + Command("report").word(file).line());
    } else {
      without_recall(report_.attention[0]);
    }
  }

  void curves() {
    const std::string what = "Curves of losses: no run with a log was given";
    if (model_ && model_->full) {
      miss(what + "; to train a student of " + model_->path, conversion_and_report());
    } else {
      std::vector<std::string> inputs = r_.inputs;
      inputs.push_back("RUN");
      miss(what + " (a directory that brine train, distill or convert wrote)",
           report_command(inputs, {}).line());
    }
  }

  void trade() {
    const bool given = !report_.inputs.sweeps.empty();
    const std::string what =
        join("k against perplexity and recall: ",
             given ? "the sweep has one k only" : "no table of a sweep was given");
    if (model_ && !model_->causal) {
      miss(what + "; a table needs a causal model, this one is an encoder", "");
    } else if (model_ && !model_->sparse && !model_->full) {
      miss(what + "; attention '" + model_->method + "' has no k", "");
    } else if (model_ && model_->full) {
      miss(what + "; " + model_->path + " keeps every key, so this is for a student of it",
           conversion() + " && " + sweep(student(), model_->path, 64, {student()}));
    } else {
      miss(what, sweep(path(), teacher(), model_ ? model_->k : 64, r_.inputs));
    }
  }

  void measurements() {
    std::vector<std::string> inputs = r_.inputs;
    inputs.push_back(kRows);
    const std::string shown = report_command(inputs, {}).line();
    const bool there = fs::exists(fs::path(kRows) / "rows.jsonl");
    miss("Time and memory against the number of tokens: no measurements of methods were given",
         there ? shown : Command("experiment").word("latency").line() + " && " + shown);
  }

 private:
  void miss(const std::string& what, const std::string& command) {
    report_.missing.push_back({what, command});
  }
  void add_subject(const std::string& path) {
    if (auto subject = subject_of(path)) subjects_.push_back(std::move(*subject));
  }
  std::string path() const {
    if (model_) return model_->path;
    return report_.inputs.models.empty() ? "MODEL" : report_.inputs.models[0].path;
  }

  // brine report with the flags that were given.
  struct Change {
    int64_t k = 0;           // 0: as given
    bool adds_text = false;  // also if none was given
  };
  Command report_command(const std::vector<std::string>& inputs, const Change& change) const {
    const Request defaults;
    Command out("report");
    for (const std::string& input : inputs) out.word(input);
    if (r_.text.sources() || change.adds_text) with_text(out, r_);
    out.text("teacher", r_.teacher).number("k", change.k ? change.k : r_.text.k);
    out.list("layers", r_.layers).list("heads", r_.heads).number("cells", r_.cells);
    out.text("title", r_.title).text("figures", r_.figures).text("tokenizer", r_.tokenizer);
    out.text("importance", r_.importance);
    out.number("importance-keys", r_.importance_keys, defaults.importance_keys);
    out.number("max-bytes", r_.max_bytes, defaults.max_bytes);
    if (r_.costs != defaults.costs) out.list("costs", r_.costs);
    return out.text("out", r_.out == defaults.out ? "" : r_.out);
  }

  // The text that was given, or a window of files.
  Command& with_text(Command& out, const Request& r) const {
    if (r.text.sources() == 0) return with_files(out);
    out.text("text", r.text.text).text("tokens", r.text.tokens).list("data", r.text.data);
    return out.number("window", r.text.window).number("sequence-length", r.text.sequence_length);
  }
  Command with_text(Command&& out, const Request& r) const { return with_text(out, r); }

  // Files of text for commands that need them: those given, those of the run, or a name.
  std::vector<std::string> files() const {
    if (!r_.text.data.empty()) return r_.text.data;
    for (const char* key : {"valid", "data", "train"}) {
      if (!model_) break;
      std::vector<std::string> stored = stored_paths(model_->configuration, key);
      if (!stored.empty()) return stored;
    }
    return {kText};
  }
  int64_t length() const {
    if (r_.text.sequence_length) return r_.text.sequence_length;
    return model_ ? std::min(kLength, model_->positions) : kLength;
  }
  Command& with_files(Command& out) const {
    return out.list("data", files()).number("sequence-length", length());
  }

  // A dense teacher of the model: the one given, one among the inputs, or that of its run.
  std::string teacher() const {
    if (!r_.teacher.empty() && r_.teacher != distill::kSelf) return r_.teacher;
    for (const Subject& each : subjects_)
      if (each.full) return each.path;
    const std::vector<std::string> stored =
        model_ ? stored_paths(model_->configuration, "teacher") : std::vector<std::string>();
    return stored.empty() ? "" : stored[0];
  }

  // Where a conversion of the dense model goes.
  std::string student() const {
    const fs::path whole = run_of(model_->path);
    const std::string name = fs::is_directory(whole) ? whole.filename() : whole.stem();
    return unused(name.empty() || name == "." ? "student" : name + "-sea", "");
  }
  std::string conversion() const {
    return Command("convert")
        .text("teacher", model_->path)
        .list("data", files())
        .number("sequence-length", r_.text.sequence_length)
        .text("out", student())
        .line();
  }
  std::string conversion_and_report() const {
    Command shown("report");
    shown.word(student()).text("teacher", model_->path);
    return conversion() + " && " + with_text(shown, r_).line();
  }

  std::string sweep(const std::string& of, const std::string& teacher, int64_t k,
                    std::vector<std::string> inputs) const {
    const std::string table = unused("sweep", ".tsv");
    std::set<int64_t> keys;
    for (const int64_t each : {k / 2, k, 2 * k, 4 * k})
      if (each > 0 && each < length()) keys.insert(each);
    if (keys.size() < 2) keys.insert({std::max<int64_t>(1, length() / 8), length() / 4});
    Command out("sweep");
    out.text("model", of).text("teacher", teacher.empty() ? distill::kSelf : teacher);
    if (!teacher.empty()) out.flag("floors");
    with_files(out).list("k", std::vector<int64_t>(keys.begin(), keys.end())).text("out", table);
    std::erase_if(inputs, [&](const std::string& input) {  // the table that has one k
      return std::any_of(report_.inputs.sweeps.begin(), report_.inputs.sweeps.end(),
                         [&](const SweepInput& each) { return each.path == input; });
    });
    inputs.push_back(table);
    return out.line() + " && " + report_command(inputs, {}).line();
  }

  void without_weights() {
    const std::string what = "Maps of attention and mask health: ";
    for (const RunInput& run : report_.inputs.runs) {
      if (run.command.empty()) continue;
      Command shown("report");
      for (const std::string& input : r_.inputs) shown.word(input);
      miss(what + "the run " + run.path + " has no checkpoint; to train it again",
           run.command + " && " + with_text(shown, r_).line());
      return;
    }
    Command shown("report");
    shown.word("MODEL");
    for (const std::string& input : r_.inputs) shown.word(input);
    miss(what + "no model with weights and no capture was given", with_text(shown, r_).line());
  }

  void without_recall(const Attention& a) {
    if (!a.text.recall.empty()) return;
    const auto tokens = int64_t(a.ids.size());
    if (a.sparse && tokens < 2) {
      Command shown("report");
      for (const std::string& input : r_.inputs) shown.word(input);
      miss("Mask health: no query of this text sees more than k keys, it has one token",
           with_files(shown).line());
    } else if (a.sparse) {
      const bool captured = report_.inputs.models.empty();
      const std::string what =
          join("Mask health: no query of this text sees more than k keys (k = ", a.k, ", ", tokens,
               " tokens), so none is left out");
      const int64_t k = std::max<int64_t>(1, std::min<int64_t>(4, tokens / 4));
      if (captured) {
        miss(what + "; capture a longer text", longer_capture());
      } else {
        miss(what, report_command(r_.inputs, {.k = k}).line());
      }
    } else if (model_ && model_->full) {
      miss("Mask health: attention '" + a.method + "' keeps every key; of a student of it",
           conversion_and_report());
    } else {
      miss("Mask health: attention '" + a.method + "' has no mask", "");
    }
  }

  std::string longer_capture() const {
    const std::string file = unused("capture", ".h5");
    Command inspect("inspect");
    inspect.word(path()).text("capture", file);
    return with_files(inspect).line() + " && " + Command("report").word(file).line();
  }

  Report& report_;
  const Request& r_;
  std::vector<Subject> subjects_;
  std::optional<Subject> model_;  // that commands are about: the first with a mask, or the first
};

}  // namespace

void note_missing(Report& report, const Request& request) {
  Advice advice(report, request);
  auto has = [&](Section section) {
    return std::any_of(report.charts.begin(), report.charts.end(),
                       [&](const Chart& chart) { return chart.section == section; });
  };
  advice.attention();
  if (!has(Section::curves)) advice.curves();
  if (!has(Section::trade)) advice.trade();
  const bool measured =
      std::any_of(report.charts.begin(), report.charts.end(), [](const Chart& chart) {
        return chart.section == Section::cost && chart.lines.x_label == "tokens" &&
               chart.lines.y_label == "milliseconds";
      });
  if (!measured) advice.measurements();
}

}  // namespace brine::report
