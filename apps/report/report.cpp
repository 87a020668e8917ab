// Gathering a report: inputs, a text through models, charts.
#include "apps/report/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/terminal/terminal.h"
#include "distill/runs/training_run.h"

namespace brine::report {
namespace {

// Of all heads while maps are collected, 48 bytes each: by default, and if cells are asked for.
constexpr int64_t kMostCells = 3000000, kMostAskedCells = 12000000;

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
  const auto shown = int64_t((some_layers.empty() ? size_t(layers) : some_layers.size()) *
                             (some_heads.empty() ? size_t(heads) : some_heads.size()));
  const int64_t cells = r.cells ? std::min(distill::cells_at_most(tokens, r.cells),
                                           distill::cells_for(tokens, shown, kMostAskedCells))
                                : distill::cells_for(tokens, shown, kMostCells);
  return {.ids = std::move(ids),
          .k = r.text.k,
          .teacher = r.teacher,
          .maps = {.cells = cells, .layers = some_layers, .heads = some_heads}};
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
  distill::TextPass pass = pass_of(r, r.text.ids(m, "report"), m.config.shape());
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
  text.describe_text(s, "Maps: ");
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

  std::vector<Curves> curves;
  for (const RunInput& run : report.inputs.runs) curves.push_back({run.name, run.log});
  auto add = [&](Charts charts) {
    report.charts.insert(report.charts.end(), std::make_move_iterator(charts.begin()),
                         std::make_move_iterator(charts.end()));
  };
  if (report.attention && !report.attention->text.recall.empty())
    add({health_chart(report.attention->name, report.attention->text.recall)});
  add(curve_charts(curves));
  for (const SweepInput& sweep : report.inputs.sweeps) add(sweep.charts);
  std::erase_if(report.charts, [](const Chart& chart) { return chart.lines.lines.empty(); });
  // Inputs may have the same names; elements of the page may not.
  std::set<std::string> ids;
  for (Chart& chart : report.charts) {
    const std::string id = chart.id;
    for (int number = 2; !ids.insert(chart.id).second; ++number) chart.id = join(id, "-", number);
  }
  report.title = r.title.empty() ? title_of(report) : r.title;
  return report;
}

}  // namespace brine::report
