// The page: data as JSON, next to the files that show it.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/report/pack.h"
#include "apps/report/page_files.h"
#include "apps/report/report.h"
#include "data/io/json.h"
#include "distill/evaluation/health/mask_health.h"

namespace brine::report {
namespace {

using data::Json;

// What is left for maps after everything else, and what a few more characters in their JSON take.
constexpr size_t kMapSlack = 20000;
constexpr int64_t kMostTokens = 16384;  // whose texts the page has one by one

// JSON inside a script element: "<" never appears, so no text can end the element or begin another.
std::string script_json(const Json& value) {
  std::string out;
  for (const char c : printable_json(value)) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

const char* name_of(Section section) {
  switch (section) {
    case Section::curves:
      return "curves";
    case Section::health:
      return "health";
    case Section::trade:
      return "trade";
  }
  return "";
}

// Points of a line on the page: of more, each is the mean of several neighbours.
constexpr size_t kMostPoints = 500;

// The numbers of a line that have a place, those of a diverged run have none.
figure::Line shown(const figure::Line& line) {
  figure::Line out{.name = line.name, .points = {}};
  for (const auto& [x, values] : line.points) {
    if (std::isfinite(figure::mean(values))) out.points[x] = values;
  }
  if (out.points.size() <= kMostPoints) return out;
  const distill::Blocks blocks(int64_t(out.points.size()), int64_t(kMostPoints));
  figure::Line thin{.name = line.name, .points = {}};
  auto point = out.points.begin();
  for (int64_t b = 0; b < blocks.cells(); ++b) {
    double x = 0, y = 0;
    for (int64_t i = 0; i < blocks.size(b); ++i, ++point) {
      x += point->first;
      y += figure::mean(point->second);
    }
    thin.points[x / double(blocks.size(b))] = {y / double(blocks.size(b))};
  }
  return thin;
}

// Less than a decade has too few round numbers for a logarithmic axis.
bool spans_decade(const figure::LineChart& chart, bool of_x) {
  double low = INFINITY, high = 0;
  for (const figure::Line& line : chart.lines) {
    for (const auto& [x, values] : line.points) {
      const double at = of_x ? x : figure::mean(values);
      low = std::min(low, at);
      high = std::max(high, at);
    }
  }
  return low > 0 && high >= 10 * low;
}

// The lines of a chart as the page shows them; none if no number has a place.
figure::LineChart shown(const figure::LineChart& chart) {
  figure::LineChart out = chart;
  out.lines.clear();
  for (const figure::Line& line : chart.lines) {
    figure::Line points = shown(line);
    if (!points.points.empty()) out.lines.push_back(std::move(points));
  }
  out.log_x = out.log_x && spans_decade(out, true);
  out.log_y = out.log_y && spans_decade(out, false);
  return out;
}

Json json_of(const Chart& chart, const figure::LineChart& drawn) {
  Json lines = Json::array();
  for (const figure::Line& line : drawn.lines) {
    Json points = Json::array();
    for (const auto& [x, values] : line.points) {
      Json point = Json::array({x, figure::mean(values)});
      if (values.size() > 1) point.push_back(values);
      points.push_back(std::move(point));
    }
    lines.push_back({{"name", line.name}, {"points", points}});
  }
  const bool thinned =
      std::any_of(chart.lines.lines.begin(), chart.lines.lines.end(),
                  [](const figure::Line& line) { return line.points.size() > kMostPoints; });
  std::string note = chart.note;
  if (thinned) {
    note += (note.empty() ? "" : " ") +
            join("Long lines have ", kMostPoints, " points, means of neighbours.");
  }
  return {{"id", chart.id},       {"section", name_of(chart.section)},
          {"title", drawn.title}, {"x", drawn.x_label},
          {"y", drawn.y_label},   {"alt", chart.described()},
          {"note", note},         {"svg", figure::svg(drawn)},
          {"lines", lines}};
}

// The text of a block of tokens: all of a short one, the ends of a long one.
std::string block_text(const std::vector<std::string>& tokens, int64_t begin, int64_t end) {
  constexpr int64_t kEnds = 4;
  std::string out;
  for (int64_t i = begin; i < end; ++i) {
    if (end - begin > 2 * kEnds && i == begin + kEnds) {
      out += " ... ";
      i = end - kEnds;
    }
    out += tokens[size_t(i)];
  }
  return out;
}

Json block_texts(const std::vector<std::string>& tokens, const distill::Blocks& blocks) {
  Json out = Json::array();
  for (int64_t c = 0; c < blocks.cells(); ++c)
    out.push_back(block_text(tokens, blocks.begin(c), blocks.begin(c + 1)));
  return out;
}

// The mean of each block of a list.
std::vector<float> averaged(const std::vector<float>& values, const distill::Blocks& blocks) {
  std::vector<float> out;
  for (int64_t c = 0; c < blocks.cells(); ++c) {
    double sum = 0;
    for (int64_t i = blocks.begin(c); i < blocks.begin(c + 1); ++i) sum += values[size_t(i)];
    out.push_back(float(sum / double(blocks.size(c))));
  }
  return out;
}

Json heat_of(const Attention& a, const distill::Blocks& blocks) {
  Json layers = Json::array();
  for (const distill::TokenHeat& heat : a.text.maps.heat) {
    Json layer = {{"teacher", packed_masses(averaged(heat.teacher, blocks))}};
    if (!heat.student.empty()) layer["student"] = packed_masses(averaged(heat.student, blocks));
    layers.push_back(layer);
  }
  return layers;
}

// The attention of a student, to which add_maps() adds what depends on the side of maps.
Json json_of(const Attention& a) {
  const distill::TextMaps& maps = a.text.maps;
  const distill::Blocks listed(maps.tokens, std::min(maps.tokens, kMostTokens));
  Json out = {{"name", a.name},
              {"method", a.method},
              {"teacher", a.teacher},
              {"source", a.source},
              {"settings", parse_ordered_json(a.settings)},
              {"k", a.k},
              {"keys_read", a.keys_read},
              {"columns", maps.columns},
              {"tokens", maps.tokens},
              {"words", block_texts(a.tokens, listed)},
              {"heat", heat_of(a, listed)}};
  if (!a.text.recall.empty()) out["recall"] = distill::to_json(distill::mask_rows(a.text.recall));
  return out;
}

// Replaces maps that were added before. `heads` may be none.
void add_maps(Json& attention, const Attention& a, const distill::TextMaps& maps,
              const std::vector<Json>& heads) {
  const distill::Blocks cells(maps.tokens, maps.cells);
  Json starts = Json::array(), list = Json::array();
  for (int64_t c = 0; c <= cells.cells(); ++c) starts.push_back(cells.begin(c));
  for (size_t i = 0; i < heads.size(); ++i) {
    Json head = {{"layer", maps.heads[i].layer}, {"head", maps.heads[i].head}};
    head.update(heads[i]);
    list.push_back(std::move(head));
  }
  attention["cells"] = maps.cells;
  attention["starts"] = std::move(starts);
  attention["texts"] = block_texts(a.tokens, cells);
  attention["maps"] = std::move(list);
}

Json json_of(const RunInput& run) {
  Json events = Json::array();
  for (const distill::LogRecord& record : run.log) {
    if (!record.text.empty()) events.push_back({{"step", record.step}, {"text", record.text}});
  }
  return {{"name", run.name},       {"path", run.path},        {"configuration", run.configuration},
          {"command", run.command}, {"lines", run.log.size()}, {"events", events}};
}

Json everything_but_maps(const Report& report) {
  Json out = {{"title", report.title},   {"program", report.program}, {"command", report.command},
              {"leastMass", kLeastMass}, {"charts", Json::array()},   {"runs", Json::array()},
              {"attention", nullptr}};
  for (const Chart& chart : report.charts) {
    const figure::LineChart drawn = shown(chart.lines);
    if (!drawn.lines.empty()) out["charts"].push_back(json_of(chart, drawn));
  }
  for (const RunInput& run : report.inputs.runs) out["runs"].push_back(json_of(run));
  return out;
}

// The template with each "/*NAME*/" replaced by the file of that name, "/*data*/" by the data.
std::string assembled(const std::string& title, const Json& data) {
  const std::string_view html = page_file("page.html");
  std::string out;
  for (size_t at = 0; at < html.size();) {
    const size_t mark = html.find("/*", at), end = html.find("*/", mark);
    if (mark == html.npos) {
      out += html.substr(at);
      break;
    }
    out += html.substr(at, mark - at);
    const std::string_view name = html.substr(mark + 2, end - mark - 2);
    if (name == "data") {
      out += script_json(data);
    } else if (name == "title") {
      out += figure::xml_escaped(title);
    } else {
      out += page_file(name);
    }
    at = end + 2;
  }
  return out;
}

}  // namespace

std::string page(const Report& report, const Request& request) {
  Json data = everything_but_maps(report);
  if (report.attention) {
    data["attention"] = json_of(*report.attention);
    add_maps(data["attention"], *report.attention, report.attention->text.maps, {});
  }
  const size_t limit = size_t(request.max_bytes);
  const size_t used = assembled(report.title, data).size();  // what is left is for maps
  check(used <= limit, "report: the page has ", used, " bytes without maps, --max-bytes is ", limit,
        "; give fewer inputs");
  if (!report.attention) return assembled(report.title, data);
  const size_t left = limit - used > kMapSlack ? limit - used - kMapSlack : 0;
  const PackedHeads packed = pack_heads(report.attention->text.maps, left);
  add_maps(data["attention"], *report.attention, packed.maps, packed.heads);
  const std::string out = assembled(report.title, data);
  check(out.size() <= limit, "report: the page has ", out.size(),
        " bytes with the coarsest maps, --max-bytes ", limit, "; give some --layers or --heads");
  return out;
}

}  // namespace brine::report
