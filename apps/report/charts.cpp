// Charts in words; that of mask health.
#include "apps/report/charts.h"

#include <cctype>
#include <cstdio>

#include "distill/evaluation/health/mask_health.h"

namespace brine::report {
namespace {

std::string short_number(double x) {
  char text[40];
  std::snprintf(text, sizeof text, "%.6g", x);
  return text;
}

struct Way {
  const char* name;
  recall::Way way;
};
constexpr Way kWays[] = {{"mask", recall::kMask},
                         {"top keys", recall::kTopKeys},
                         {"best columns", recall::kBestColumns},
                         {"4 sinks + most recent", recall::kSinksRecent},
                         {"most recent", recall::kRecent},
                         {"random", recall::kRandom}};

}  // namespace

std::string id_of(const std::string& text) {
  std::string out;
  for (char c : text) {
    const auto letter = static_cast<unsigned char>(c);
    if (std::isalnum(letter) && letter < 128) {
      out += char(std::tolower(letter));
    } else if (!out.empty() && out.back() != '-') {
      out += '-';
    }
  }
  while (!out.empty() && out.back() == '-') out.pop_back();
  return out.empty() ? "x" : out;
}

std::string Chart::described() const {
  std::string out = lines.title + ": " + lines.y_label + " over " + lines.x_label + ". ";
  constexpr size_t kMost = 8;  // a list of more lines is not read to the end; the table has all
  for (size_t i = 0; i < std::min(lines.lines.size(), kMost); ++i) {
    const figure::Line& line = lines.lines[i];
    const auto &first = *line.points.begin(), &last = *line.points.rbegin();
    out += (line.name.empty() ? "It is " : line.name + " is ") +
           short_number(figure::mean(first.second)) + " at " + short_number(first.first);
    if (line.points.size() > 1) {
      out += " and " + short_number(figure::mean(last.second)) + " at " + short_number(last.first);
    }
    out += ". ";
  }
  if (lines.lines.size() > kMost) out += join(lines.lines.size() - kMost, " more lines. ");
  out.pop_back();
  return out;
}

Chart health_chart(const std::string& name, const std::vector<distill::Recall>& layers) {
  Chart chart{.id = "recall-" + id_of(name),
              .section = Section::health,
              .lines = {.title = "Mask recall by layer, " + name,
                        .x_label = "layer",
                        .y_label = "teacher's attention on the kept keys",
                        .lines = {}},
              .note =
                  "Means over heads and over the queries of the text that see more keys than "
                  "they keep; every floor and ceiling keeps as many keys as the mask."};
  for (const Way& way : kWays) {
    figure::Line line{.name = way.name, .points = {}};
    for (size_t i = 0; i < layers.size(); ++i) {
      if (layers[i].rows > 0) line.points[double(i)].push_back(layers[i].mean(way.way));
    }
    if (!line.points.empty()) chart.lines.lines.push_back(std::move(line));
  }
  return chart;
}

}  // namespace brine::report
