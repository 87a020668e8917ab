// Charts of the tables that a sweep writes: each measured value over k.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "apps/report/charts.h"
#include "data/io/file_io.h"
#include "data/io/json.h"
#include "data/io/printable.h"

namespace brine::report {
namespace {

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells(1);
  for (char c : line) {
    if (c == '\t') {
      cells.emplace_back();
    } else if (c != '\r') {
      cells.back() += c;
    }
  }
  return cells;
}

// One line of the table: the columns that say what was measured, and the numbers. `keys` are those
// read, "all" of dense attention.
struct SweepRow {
  std::string attention, keys, query_skip;
  std::vector<std::pair<std::string, double>> values;
};

SweepRow row_of(const std::vector<std::string>& names, const std::vector<std::string>& cells,
                const std::string& place) {
  SweepRow row;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == "attention") {
      row.attention = cells[i];
    } else if (names[i] == "k" || (names[i] == "keys_read" && row.keys != "all")) {
      row.keys = cells[i];
    } else if (names[i] == "query_skip") {
      row.query_skip = cells[i];
    } else if (!cells[i].empty() && names[i] != "keys_read") {
      const data::Json value = parse_json_or_discard(cells[i]);
      check_format(value.is_number(), place, ": ", data::shown(names[i]), " is not a number");
      row.values.emplace_back(names[i], value.get<double>());
    }
  }
  return row;
}

// Empty for a line of dense attention, which keeps all keys.
std::optional<double> number(const std::string& keys) {
  const data::Json value = parse_json_or_discard(keys);
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

void add_point(Chart& chart, const std::string& line, double x, double y) {
  auto& lines = chart.lines.lines;
  auto found = std::find_if(lines.begin(), lines.end(),
                            [&](const figure::Line& each) { return each.name == line; });
  if (found == lines.end()) found = lines.insert(lines.end(), {.name = line, .points = {}});
  found->points[x].push_back(y);
  // Zero has no place on a logarithmic axis.
  chart.lines.log_x = chart.lines.log_x && x > 0;
  chart.lines.log_y = chart.lines.log_y && y > 0;
}

// `keys`: the column of the x axis.
Chart& chart_of(Charts& charts, const std::string& name, const std::string& value,
                const std::string& keys) {
  const std::string id = id_of(join(name, "-", value));
  for (Chart& chart : charts) {
    if (chart.id == id) return chart;
  }
  charts.push_back({.id = id,
                    .section = Section::trade,
                    .lines = {.title = join(value, " of ", name),
                              .x_label = keys,
                              .y_label = value,
                              .log_x = true,
                              .log_y = value.find("perplexity") != value.npos,
                              .lines = {}},
                    .note = "Measured by brine sweep on the same windows."});
  return charts.back();
}

}  // namespace

bool is_sweep(const std::string& text) {
  return text.rfind("attention\tk\t", 0) == 0 || text.rfind("k\tquery_skip\t", 0) == 0;
}

Charts sweep_charts(const std::string& file, const std::string& text) {
  check_format(is_sweep(text), file, ": is not a table of brine sweep");
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  const std::vector<std::string> names = cells_of(line);
  std::vector<SweepRow> rows;
  std::vector<double> keys;
  for (size_t at = 2; std::getline(lines, line); ++at) {
    const std::vector<std::string> cells = cells_of(line);
    const std::string place = join(file, ":", at);
    check_format(cells.size() == names.size(), place, ": ", cells.size(), " cells, wanted ",
                 names.size());
    rows.push_back(row_of(names, cells, place));
    if (const auto k = number(rows.back().keys)) keys.push_back(*k);
  }
  const bool skips = std::any_of(rows.begin(), rows.end(), [&](const SweepRow& row) {
    return row.query_skip != rows.front().query_skip;
  });
  const bool reads = std::ranges::count(names, "keys_read") > 0;
  const std::string name = data::Path(file).stem().string();
  Charts charts;
  for (const SweepRow& row : rows) {
    const std::string label = skips ? join("query skip ", row.query_skip) : row.attention;
    const auto k = number(row.keys);
    for (const auto& [value, y] : row.values) {
      Chart& chart = chart_of(charts, name, value, reads ? "keys read" : "kept keys k");
      // Dense attention is a line at every k.
      for (const double x : k ? std::vector{*k} : keys) add_point(chart, label, x, y);
    }
  }
  return charts;
}

}  // namespace brine::report
