// The line charts of a report, as the data that page/charts.js draws.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "data/io/json.h"
#include "distill/evaluation/recall.h"
#include "distill/log/log_reader.h"

namespace brine::report {

struct Line {
  std::string name;
  std::map<double, double> points = {};
};

struct Chart {
  std::string section;                // of the page: "curves", "health" or "trade"
  std::string title, x, y;            // x and y: what is on the axes
  bool log_x = false, log_y = false;  // if the numbers span a decade
  std::vector<Line> lines = {};
  std::string note = {};  // what was measured, in a sentence

  // A number that is not finite has no place and is left out.
  void add(const std::string& line, double x_value, double y_value);
};
using Charts = std::vector<Chart>;

// Long lines become means of neighbours.
data::Json to_json(const Chart& chart);

// A chart for each value that any of the runs logged, and one for the values by layer of each run
// ("layer.3.recall").
void add_curves(Charts& charts, const std::string& run, const std::vector<distill::LogRecord>& log);

// Mask recall by layer next to its floors and ceilings with as many keys; `name` is the student's.
Chart health_chart(const std::string& name, const std::vector<distill::Recall>& layers);

// Of a table that `brine sweep --out` wrote, with floors or without; `file` starts messages about
// lines that are not of such a table.
Charts sweep_charts(const std::string& file, const std::string& text);
// Whether a text begins like such a table.
bool is_sweep(const std::string& text);

}  // namespace brine::report
