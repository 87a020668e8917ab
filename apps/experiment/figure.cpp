// The lines of a figure, from rows.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/experiment/render.h"
#include "apps/figure/line_chart.h"
#include "data/io/json.h"
#include "tensor/base/error.h"

namespace brine::experiment {
namespace {

std::vector<figure::Line> lines_of(const FigureSpec& spec, const std::vector<Row>& all) {
  std::vector<figure::Line> lines;
  for (const Row& row : rows_of(all, spec.step, spec.where, spec.joined)) {
    Row x = field(row, spec.x);
    const Row y = field(row, spec.y);
    if (x.is_string()) x = parse_json_or_discard(x.get<std::string>());  // an axis is text
    if (!x.is_number() || !y.is_number()) continue;
    const std::string name = spec.series.empty() ? "" : label_of(row, spec.series);
    auto line = std::find_if(lines.begin(), lines.end(),
                             [&](const figure::Line& each) { return each.name == name; });
    if (line == lines.end()) line = lines.insert(lines.end(), {.name = name, .points = {}});
    line->points[x.get<double>()].push_back(y.get<double>());
  }
  check(!lines.empty(), "figure ", spec.name, ": no row has both ", spec.x, " and ", spec.y);
  return lines;
}

}  // namespace

std::string svg(const FigureSpec& spec, const std::vector<Row>& rows) {
  return figure::svg({.title = spec.title,
                      .x_label = spec.x_label,
                      .y_label = spec.y_label,
                      .log_x = spec.log_x,
                      .log_y = spec.log_y,
                      .lines = lines_of(spec, rows)});
}

}  // namespace brine::experiment
