// Gathering a report: inputs, a text through models, charts.
#include "apps/report/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "apps/terminal/terminal.h"
#include "data/checkpoint/checkpoint.h"
#include "data/corpus/corpus.h"
#include "data/gguf/gguf_file.h"
#include "data/io/file_io.h"
#include "data/io/utf8.h"
#include "data/tokenizer/prompt_tokens.h"
#include "distill/evaluation/evaluate.h"
#include "distill/evaluation/tasks/task_report.h"
#include "distill/runs/training_run.h"

namespace brine::report {

namespace {

// "1,2,3"
std::vector<int32_t> parse_ids(const std::string& list) {
  std::vector<int32_t> ids;
  for (const std::string& part : data::split(list, ',')) {
    int32_t id = -1;
    check(data::parse_number(part, id) && id >= 0,
          "--tokens must be ids separated by commas, got \"", list, "\"");
    ids.push_back(id);
  }
  return ids;
}

}  // namespace

void TextInput::describe(data::Schema& s) {
  // An empty value would otherwise be the same as none.
  s.field("text", text, "Maps: this text, with the tokens that the tokenizer adds to a text",
          {.then = [this] { check(!text.empty(), "--text is empty, wanted a text"); }});
  s.field("tokens", tokens, "Maps: these token ids, 1,2,3",
          {.then = [this] { check(!tokens.empty(), "--tokens is empty, wanted ids: 1,2,3"); }});
  s.field("data", data, "Maps: a window of these text files", {.then = [this] {
            const bool good = std::find(data.begin(), data.end(), "") == data.end();
            check(good, "--data has an empty name, wanted files");
          }});
  s.field("window", window, "Maps: which window of the text files", {.min = 0});
  s.field("sequence_length", sequence_length, "Maps: tokens of a window; 0 = the model's positions",
          {.min = 0});
  s.field("k", k, "Maps: kept keys per query and head; 0 = as trained", {.min = 0});
}

std::vector<int32_t> TextInput::ids(const nn::LoadedModel& m) const {
  check(sources() == 1, "report needs one of --text, --tokens and --data");
  if (!tokens.empty()) return parse_ids(tokens);
  const std::unique_ptr<data::Tokenizer> tokenizer = distill::tokenizer_of(m, log_messages());
  if (!text.empty()) {
    return data::prompt_tokens(*tokenizer, text, [&](const std::string& warning) {
      log_warning("report: --text: ", warning);
    });
  }
  const int64_t length = sequence_length ? sequence_length : m.config.shape().max_positions;
  const data::TokenCorpus corpus = data::load_corpus(data, *tokenizer, length);
  check(window < corpus.windows(), data[0], ": has ", corpus.windows(), " windows of ", length,
        " tokens, there is no window ", window);
  return corpus.window(window);
}

namespace {

using data::Json;

// Values of a step that say how it went, not what was learned.
constexpr const char* kBookkeeping[] = {"total",       "seconds", "tokens",
                                        "worst_layer", "k",       "columns"};
constexpr size_t kMaxPoints = 500;  // of a line on the page

Chart& chart_of(Charts& charts, Chart wanted) {
  for (Chart& chart : charts) {
    if (chart.section == wanted.section && chart.title == wanted.title) return chart;
  }
  return charts.emplace_back(std::move(wanted));
}

Json points_of(const Line& line) {
  const auto count = int64_t(line.points.size());
  const distill::Blocks blocks(count, std::min(count, int64_t(kMaxPoints)));
  Json out = Json::array();
  auto point = line.points.begin();
  for (int64_t b = 0; b < blocks.cells(); ++b) {
    double x = 0, y = 0;
    for (int64_t i = 0; i < blocks.size(b); ++i, ++point) {
      x += point->first;
      y += point->second;
    }
    out.push_back({x / double(blocks.size(b)), y / double(blocks.size(b))});
  }
  return out;
}

// Less than a decade has too few round numbers for a logarithmic axis, and 0 is not on it.
bool spans_decade(const Json& lines, size_t axis) {
  double low = INFINITY, high = 0;
  for (const Json& line : lines) {
    for (const Json& point : line.at("points")) {
      low = std::min(low, point[axis].get<double>());
      high = std::max(high, point[axis].get<double>());
    }
  }
  return low > 0 && high >= 10 * low;
}

std::vector<std::string> cells_of(std::string line) {
  std::erase(line, '\r');
  return data::split(line, '\t');
}

// A line of a table of brine sweep: its cells by the names of their columns.
struct SweepRow {
  std::string where;
  std::map<std::string, std::string> cells = {};

  bool dense() { return cells["k"] == "all"; }
  double number(const std::string& name) {
    const Json value = parse_json_or_discard(cells[name]);
    check_format(value.is_number(), where, ": ", data::shown(name), " is not a number");
    return value.get<double>();
  }
};

}  // namespace

void Chart::add(const std::string& line, double x_value, double y_value) {
  if (!std::isfinite(y_value)) return;
  auto found = std::ranges::find(lines, line, &Line::name);
  if (found == lines.end()) found = lines.insert(lines.end(), {.name = line});
  found->points[x_value] = y_value;
}

Json to_json(const Chart& chart) {
  Json lines = Json::array();
  std::string note = chart.note;
  for (const Line& line : chart.lines) {
    lines.push_back({{"name", line.name}, {"points", points_of(line)}});
    if (line.points.size() > kMaxPoints)
      note = join("Long lines have ", kMaxPoints, " points, means of neighbours.");
  }
  return {{"section", chart.section},
          {"title", chart.title},
          {"x", chart.x},
          {"y", chart.y},
          {"note", note},
          {"log_x", chart.log_x && spans_decade(lines, 0)},
          {"lines", lines},
          {"log_y", chart.log_y && spans_decade(lines, 1)}};
}

namespace {

namespace fs = std::filesystem;

// A chart for each value that any of the runs logged, and one for the values by layer of each run
// ("layer.3.recall").
void add_curves(Charts& charts, const std::string& run,
                const std::vector<distill::LogRecord>& log) {
  for (const distill::LogRecord& record : log) {
    for (const auto& [name, value] : record.values) {
      if (std::ranges::count(kBookkeeping, name)) continue;
      std::string title = name, line = run, y = name;
      if (name.starts_with("layer.")) {  // "layer.3", "layer.3.recall"
        const size_t dot = std::min(name.find('.', 6), name.size());
        y = dot == name.size() ? "loss" : name.substr(dot + 1);
        title = y + " by layer, " + run;
        line = "layer " + name.substr(6, dot - 6);
      }
      chart_of(charts, {.section = "curves", .title = title, .x = "step", .y = y, .log_y = true})
          .add(line, double(record.step), value);
    }
  }
}

// Mask recall by layer next to its floors and ceilings with as many keys; `name` is the student's.
Chart health_chart(const std::string& name, const std::vector<distill::Recall>& layers) {
  Chart chart{.section = "health",
              .title = "Mask recall by layer, " + name,
              .x = "layer",
              .y = "teacher's attention on the kept keys",
              .note =
                  "Means over heads and over the queries of the text that see more keys than "
                  "they keep; every floor and ceiling keeps as many keys as the mask."};
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].rows == 0) continue;
    for (const auto& [line, way] : {std::pair("mask", recall::kMask),
                                    {"top keys", recall::kTopKeys},
                                    {"best columns", recall::kBestColumns},
                                    {"4 sinks + most recent", recall::kSinksRecent},
                                    {"most recent", recall::kRecent},
                                    {"random", recall::kRandom}})
      chart.add(line, double(i), layers[i].mean(way));
  }
  return chart;
}

// Whether a text begins like a table that `brine sweep --out` wrote.
bool is_sweep(const std::string& text) {
  return text.starts_with("attention\tk\t") || text.starts_with("k\tquery_skip\t");
}

// Of such a table, with floors or without; `file` starts messages about lines that are not of one.
Charts sweep_charts(const std::string& file, const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  const std::vector<std::string> names = cells_of(line);
  std::vector<SweepRow> rows;
  for (size_t at = 2; std::getline(lines, line); ++at) {
    const std::vector<std::string> cells = cells_of(line);
    SweepRow& row = rows.emplace_back(SweepRow{.where = join(file, ":", at)});
    check_format(cells.size() == names.size(), row.where, ": ", cells.size(), " cells, wanted ",
                 names.size());
    for (size_t c = 0; c < cells.size(); ++c) row.cells[names[c]] = cells[c];
  }
  const bool reads = std::ranges::count(names, "keys_read") > 0,
             skips = std::ranges::any_of(rows, [&](SweepRow&row) {
               return row.cells["query_skip"] != rows.front().cells["query_skip"];
             });
  const std::string of = data::Path(file).stem().string(), x = reads ? "keys_read" : "k";
  std::vector<double> keys;  // of the rows that do not keep all
  for (SweepRow& row : rows) {
    if (!row.dense()) keys.push_back(row.number(x));
  }
  Charts charts;
  for (SweepRow& row : rows) {
    for (const std::string& name : names) {
      if (name == "attention" || name == "k" || name == "query_skip" || name == "keys_read" ||
          row.cells[name].empty())
        continue;
      Chart& chart = chart_of(charts, {.section = "trade",
                                       .title = name + " of " + of,
                                       .x = reads ? "keys read" : "kept keys k",
                                       .y = name,
                                       .log_x = true,
                                       .log_y = name.find("perplexity") != name.npos,
                                       .note = "Measured by brine sweep on the same windows."});
      // Dense attention is a line at every k.
      for (const double at : row.dense() ? keys : std::vector{row.number(x)})
        chart.add(skips ? "query skip " + row.cells["query_skip"] : row.cells["attention"], at,
                  row.number(name));
    }
  }
  return charts;
}

// The last `parts` parts of a path.
std::string last_parts(const std::string& path, size_t parts) {
  fs::path whole = data::without_slash(path);
  fs::path out;
  for (size_t i = 0; i < parts && whole.has_filename(); ++i) {
    out = out.empty() ? whole.filename() : whole.filename() / out;
    whole = whole.parent_path();
  }
  return out.empty() ? path : out.string();
}

std::vector<std::string> names_of(const std::vector<std::string>& paths) {
  constexpr size_t kMaxParts = 8;
  std::vector<std::string> names;
  for (size_t parts = 1; parts <= kMaxParts; ++parts) {
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
  const std::string start = data::read_start(path, 64);
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

// Reads everything but models. Names are the last parts of the paths, as many as distinguish them.
// Throws in one line for a path that is none of these, and for a damaged log or table.
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

// Of all heads while maps are collected, 16 bytes each: by default, and if cells are asked for.
constexpr double kMaxCells = 3e6, kMaxAskedCells = 12e6;

std::set<int64_t> set_of(const std::vector<int64_t>& list) { return {list.begin(), list.end()}; }

void check_list(const std::vector<int64_t>& list, int64_t size, const char* what) {
  for (const int64_t each : list) {
    check(each >= 0 && each < size, "report: there is no ", what, " ", each, ", the model has ",
          size, " of them, numbered from 0");
  }
}

distill::TextPass pass_of(const Request& r, std::vector<int32_t> ids, const nn::ModelShape& shape) {
  const auto tokens = int64_t(ids.size()), layers = shape.layers, heads = shape.heads;
  check_list(r.layers, layers, "layer");
  check_list(r.heads, heads, "head");
  const std::set<int64_t> some_layers = set_of(r.layers), some_heads = set_of(r.heads);
  const auto shown = double((some_layers.empty() ? size_t(layers) : some_layers.size()) *
                            (some_heads.empty() ? size_t(heads) : some_heads.size()));
  const auto side = int64_t(std::sqrt((r.cells ? kMaxAskedCells : kMaxCells) / shown));
  return {.ids = std::move(ids),
          .k = r.text.k,
          .teacher = r.teacher,
          .maps = {.cells = distill::max_cells(tokens, r.cells ? std::min(r.cells, side) : side),
                   .layers = some_layers,
                   .heads = some_heads}};
}

std::string settings_of(const nn::ModelConfig& config) {
  data::Schema keys;
  config.method().describe(keys);
  return json_text(keys.to_json());
}

// A text without a query that sees more than k keys has no recall: 0 would mean that no mass is
// kept.
void drop_without_rows(std::vector<distill::Recall>& layers) {
  const bool none = std::all_of(layers.begin(), layers.end(),
                                [](const distill::Recall& layer) { return layer.rows == 0; });
  if (none) layers.clear();
}

// The text of each token; "12" for an id without one. Never invalid UTF-8: what is not a part of a
// character is shown as "\xe2".
std::vector<std::string> token_texts(const data::Tokenizer* tokenizer,
                                     const std::vector<int32_t>& ids) {
  std::vector<std::string> out;
  out.reserve(ids.size());
  for (const int32_t id : ids) {
    if (!tokenizer || id < 0 || id >= tokenizer->vocab_size()) {
      out.push_back(std::to_string(id));
      continue;
    }
    const std::string text = tokenizer->decode_next(id);
    out.push_back(data::is_utf8(text) ? text : data::shown(text));
  }
  return out;
}

// The attention of one text through a loaded model.
Attention attention_of(nn::LoadedModel& m, const std::string& name, const distill::TextPass& pass) {
  const bool self = pass.teacher.empty() || pass.teacher == distill::kSelf;
  const std::string location = nn::tokenizer_location(m.directory);
  const auto tokenizer = location.empty() ? nullptr : data::load_tokenizer(location);
  Attention out{.name = name,
                .about = {},
                .settings = settings_of(m.config),
                .tokens = token_texts(tokenizer.get(), pass.ids),
                .text = distill::attend_to_text(m, pass)};
  const int64_t k = distill::kept_keys_of(m.config, pass.k).value_or(0);
  const double keys_read = out.text.recall.empty()
                               ? distill::keys_of_all(m.config.shape(), int64_t(pass.ids.size()))
                               : distill::mask_rows(out.text.recall).back().keys_read;
  char read[40];
  std::snprintf(read, sizeof read, "%.1f", keys_read);
  out.about =
      join(name, ": ", m.config.attention, ", ",
           k ? join("k = ", k, " keys of a query and head") : "all keys", ", ", read,
           " keys read, ", pass.ids.size(),
           " tokens. Teacher: ", self ? "the model's own dense attention" : pass.teacher, ".");
  drop_without_rows(out.text.recall);
  return out;
}

// A text goes through the first model, so another one has its curves to show, or nothing.
void check_others(const Inputs& inputs) {
  const std::vector<ModelInput>& models = inputs.models;
  for (size_t i = 1; i < models.size(); ++i) {
    const bool curves = std::any_of(
        inputs.runs.begin(), inputs.runs.end(),
        [&](const RunInput& run) { return run.path == models[i].path && !run.log.empty(); });
    check(curves, "report: the text goes through the first model, ", models[0].path, ", and ",
          models[i].path, " is no run with curves; leave it out");
  }
}

void attend(Report& report, const Request& r) {
  check_others(report.inputs);
  const ModelInput& input = report.inputs.models.front();
  nn::LoadedModel m = distill::load_model(input.path, log_messages(), {.map = true});
  distill::OtherAttention other = r.attention;
  distill::use_attention(m, other);
  distill::TextPass pass = pass_of(r, r.text.ids(m), m.config.shape());
  distill::calibrate_on(m, Tensor::from(pass.ids, {1, int64_t(pass.ids.size())}), log_messages());
  if (!m.model->attention_traits().sparse) {
    if (!pass.teacher.empty())
      log_info("report: ", input.name, " keeps every key, so --teacher is not compared with it");
    pass.teacher.clear();
  }
  report.attention = attention_of(m, input.name, pass);
  log_info("report: ", pass.ids.size(), " tokens through ", input.name);
}

std::string title_of(const Report& report) {
  std::string names;
  std::set<std::string> known;
  auto add = [&](const auto& list) {
    for (const auto& each : list) {
      if (known.insert(each.name).second) names += (names.empty() ? "" : ", ") + each.name;
    }
  };
  add(report.inputs.runs);
  add(report.inputs.models);
  return names.empty() ? "Brine report" : names;
}

}  // namespace

void Request::describe(data::Schema& s) {
  s.field("inputs", inputs, "Runs, models, tables of brine sweep --out",
          {.required = true, .positional = true});
  s.field("out", out, "HTML file to write");
  s.field("title", title, "Title of the page; none: the names of the inputs");
  s.field("teacher", teacher,
          "Teacher whose attention is compared; none or self: the model's own dense attention");
  text.describe(s);
  attention.describe(s);
  s.field("layers", layers, "Maps of these layers only, with more cells; none: all", {.min = 0});
  s.field("heads", heads, "Maps of these heads only; none: all", {.min = 0});
  s.field("cells", cells, "Cells of a map's side; 0 = as many as fit the page", {.min = 0});
  s.field("max_bytes", max_bytes, "Largest page; maps become coarser until it fits",
          {.min = 1000000});
}

Report gather(const Request& r, const std::string& command, const std::string& program) {
  Report report;
  report.command = command;
  report.program = program;
  report.inputs = read_inputs(r.inputs);
  check(r.text.sources() == 0 || !report.inputs.models.empty(),
        "report: a text was given, but no model that it can go through");
  if (r.text.sources()) attend(report, r);
  const bool selects = !r.layers.empty() || !r.heads.empty() || r.cells;
  check(!selects || report.attention.has_value(),
        "report: --layers, --heads and --cells choose maps; give a text");

  if (report.attention && !report.attention->text.recall.empty())
    report.charts.push_back(health_chart(report.attention->name, report.attention->text.recall));
  for (const RunInput& run : report.inputs.runs) add_curves(report.charts, run.name, run.log);
  for (const Chart& chart : report.inputs.sweeps) report.charts.push_back(chart);
  std::erase_if(report.charts, [](const Chart& chart) { return chart.lines.empty(); });
  std::ranges::stable_partition(  // what was learned comes before how fast
      report.charts, [](const Chart& chart) { return chart.title != "tokens_per_second"; });
  report.title = r.title.empty() ? title_of(report) : r.title;
  return report;
}

}  // namespace brine::report
