// Charts of logs, of mask health and of sweeps.
#include "apps/report/charts.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/io/file_io.h"
#include "data/io/printable.h"
#include "distill/maps/cell_map.h"

namespace brine::report {
namespace {

using data::Json;

// Values of a step that say how it went, not what was learned.
constexpr const char* kBookkeeping[] = {"total",       "seconds", "tokens",
                                        "worst_layer", "k",       "columns"};
constexpr size_t kMostPoints = 500;  // of a line on the page

Chart& chart_of(Charts& charts, Chart wanted) {
  for (Chart& chart : charts) {
    if (chart.section == wanted.section && chart.title == wanted.title) return chart;
  }
  return charts.emplace_back(std::move(wanted));
}

Json points_of(const Line& line) {
  const auto count = int64_t(line.points.size());
  const distill::Blocks blocks(count, std::min(count, int64_t(kMostPoints)));
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

// Less than a decade has too few round numbers for a logarithmic axis, and 0 has no place on it.
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

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells(1);
  for (const char c : line) {
    if (c == '\t') {
      cells.emplace_back();
    } else if (c != '\r') {
      cells.back() += c;
    }
  }
  return cells;
}

// A line of a table of brine sweep: its cells by the names of their columns.
struct SweepRow {
  std::string place;
  std::map<std::string, std::string> cells = {};

  bool dense() { return cells["k"] == "all"; }
  double number(const std::string& name) {
    const Json value = parse_json_or_discard(cells[name]);
    check_format(value.is_number(), place, ": ", data::shown(name), " is not a number");
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
    if (line.points.size() > kMostPoints)
      note = join("Long lines have ", kMostPoints, " points, means of neighbours.");
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

bool is_sweep(const std::string& text) {
  return text.starts_with("attention\tk\t") || text.starts_with("k\tquery_skip\t");
}

Charts sweep_charts(const std::string& file, const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  const std::vector<std::string> names = cells_of(line);
  std::vector<SweepRow> rows;
  for (size_t at = 2; std::getline(lines, line); ++at) {
    const std::vector<std::string> cells = cells_of(line);
    SweepRow& row = rows.emplace_back(SweepRow{.place = join(file, ":", at)});
    check_format(cells.size() == names.size(), row.place, ": ", cells.size(), " cells, wanted ",
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

}  // namespace brine::report
