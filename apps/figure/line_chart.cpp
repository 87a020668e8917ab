// Line charts as SVG.
#include "apps/figure/line_chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>

#include "tensor/base/error.h"

namespace brine::figure {
namespace {

constexpr double kWidth = 720, kHeight = 440;
constexpr size_t kMostMarks = 60;  // points of a line with marks; more would hide it
constexpr double kLeft = 78, kRight = 190, kTop = 44, kBottom = 56;

// Okabe and Ito's colours, which readers with any colour vision can distinguish; they repeat after
// eight, with other dashes.
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                    "#e69f00", "#56b4e9", "#000000", "#8c6d1f"};
constexpr const char* kDashes[] = {"", "7 3", "2 3", "9 3 2 3"};  // of stroke-dasharray

std::string text_of(const char* format, auto... values) {
  char text[512];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

// An axis from numbers to places in the picture.
class Axis {
 public:
  // `whole`: it counts things, so numbers between whole ones are not marked.
  Axis(double low, double high, double from, double to, bool logarithmic, bool whole = false)
      : from_(from), to_(to), logarithmic_(logarithmic), whole_(whole) {
    if (logarithmic_) {
      check(low > 0, "figure: ", low, " has no place on a logarithmic axis");
      low = std::log10(low);
      high = std::log10(high);
    }
    const double room = high > low ? 0.04 * (high - low) : std::max(0.5, 0.1 * std::abs(low));
    low_ = low - room;
    high_ = high + room;
  }

  double place(double value) const {
    const double at = logarithmic_ ? std::log10(value) : value;
    return from_ + (to_ - from_) * (at - low_) / (high_ - low_);
  }

  // Round numbers inside the range: steps of 1, 2 or 5 times a power of ten.
  std::vector<double> ticks() const {
    std::vector<double> out;
    if (logarithmic_) {
      for (int e = int(std::floor(low_)); e <= int(std::ceil(high_)); ++e) {
        for (double m : high_ - low_ > 3 ? std::vector<double>{1} : std::vector<double>{1, 2, 5}) {
          const double value = m * std::pow(10.0, e);
          if (std::log10(value) >= low_ && std::log10(value) <= high_) out.push_back(value);
        }
      }
      return out;
    }
    const double rough = (high_ - low_) / 5, power = std::pow(10, std::floor(std::log10(rough)));
    double step = 10 * power;
    for (double m : {5.0, 2.0, 1.0}) {
      if (rough <= m * power) step = m * power;
    }
    if (whole_) step = std::max(step, 1.0);
    for (double at = std::ceil(low_ / step); at * step <= high_; ++at) {
      out.push_back(at * step + 0.0);  // never -0
    }
    return out;
  }

 private:
  double low_, high_, from_, to_;
  bool logarithmic_, whole_;
};

std::string mark(size_t kind, double x, double y, const char* colour) {
  switch (kind % 3) {
    case 0:
      return text_of("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n", x, y, colour);
    case 1:
      return text_of("<rect x=\"%.1f\" y=\"%.1f\" width=\"7\" height=\"7\" fill=\"%s\"/>\n",
                     x - 3.5, y - 3.5, colour);
    default:
      return text_of("<path d=\"M%.1f %.1fl4.5 8h-9z\" fill=\"%s\"/>\n", x, y - 5, colour);
  }
}

std::string label(double x, double y, const char* anchor, const std::string& text,
                  const char* more = "") {
  return text_of("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"%s>", x, y, anchor, more) +
         xml_escaped(text) + "</text>\n";
}

std::string grid(const LineChart& chart, const Axis& x, const Axis& y) {
  const double right = kWidth - kRight, bottom = kHeight - kBottom;
  std::string out;
  for (double tick : x.ticks()) {
    const double at = x.place(tick);
    out += text_of("<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/>\n", at, kTop, bottom);
    out += label(at, bottom + 18, "middle", text_of("%g", tick));
  }
  for (double tick : y.ticks()) {
    const double at = y.place(tick);
    out += text_of("<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>\n", kLeft, at, right);
    out += label(kLeft - 8, at + 4, "end", text_of("%g", tick));
  }
  out += text_of("<path class=\"axis\" d=\"M%.1f %.1fV%.1fH%.1f\"/>\n", kLeft, kTop, bottom, right);
  out += label((kLeft + right) / 2, kHeight - 16, "middle", chart.x_label);
  const std::string turned = text_of(" transform=\"rotate(-90 18 %.1f)\"", (kTop + bottom) / 2);
  out += label(18, (kTop + bottom) / 2, "middle", chart.y_label, turned.c_str());
  return out;
}

std::string drawn(const Line& line, size_t number, const Axis& x, const Axis& y) {
  const char* colour = kColours[number % std::size(kColours)];
  std::string path, marks;
  for (const auto& [at, values] : line.points) {
    const double px = x.place(at), py = y.place(mean(values));
    path += text_of("%s%.1f %.1f", path.empty() ? "M" : "L", px, py);
    if (line.points.size() <= kMostMarks) marks += mark(number, px, py, colour);
  }
  const char* dash = kDashes[number / std::size(kColours) % std::size(kDashes)];
  const double row = kTop + 10 + 20 * double(number), left = kWidth - kRight + 14;
  std::string out =
      text_of("<path class=\"line\" stroke=\"%s\" stroke-dasharray=\"%s\" d=\"", colour, dash) +
      path + "\"/>\n" + marks;
  if (line.name.empty()) return out;
  out +=
      text_of("<path class=\"line\" stroke=\"%s\" stroke-dasharray=\"%s\" d=\"M%.1f %.1fh26\"/>\n",
              colour, dash, left, row);
  return out + mark(number, left + 13, row, colour) + label(left + 33, row + 4, "start", line.name);
}

// Width and height of the picture: the title, the legend's names and its rows fit. A letter takes 7
// units, of the title 8.
std::pair<double, double> extent_of(const LineChart& chart) {
  size_t letters = 0;
  for (const Line& line : chart.lines) letters = std::max(letters, line.name.size());
  return {std::max({kWidth, kWidth - kRight + 54 + 7 * double(letters),
                    kLeft + 8 * double(chart.title.size())}),
          std::max(kHeight, kTop + 20 * double(chart.lines.size() + 1))};
}

}  // namespace

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value;
  return sum / double(values.size());
}

std::string xml_escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string svg(const LineChart& chart) {
  const std::vector<Line>& lines = chart.lines;
  check(!lines.empty(), "chart ", chart.title, ": has no lines");
  double low_x = INFINITY, high_x = -INFINITY, low_y = INFINITY, high_y = -INFINITY;
  bool whole_x = true;
  for (const Line& line : lines) {
    for (const auto& [at, values] : line.points) {
      whole_x = whole_x && at == std::floor(at);
      low_x = std::min(low_x, at);
      high_x = std::max(high_x, at);
      low_y = std::min(low_y, mean(values));
      high_y = std::max(high_y, mean(values));
    }
  }
  const Axis x(low_x, high_x, kLeft, kWidth - kRight, chart.log_x, whole_x);
  const Axis y(low_y, high_y, kHeight - kBottom, kTop, chart.log_y);
  const auto [width, height] = extent_of(chart);
  std::string out = text_of(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<title>",
      width, height);
  out += xml_escaped(chart.title) +
         "</title>\n<style>.grid{stroke:#ddd;fill:none}.axis{stroke:#333;fill:none}"
         ".line{fill:none;stroke-width:1.8}</style>\n"
         "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
  out += label(kLeft, 24, "start", chart.title, " font-size=\"15\"") + grid(chart, x, y);
  // The first lines are the most relevant, so they are above the others.
  for (size_t i = lines.size(); i-- > 0;) out += drawn(lines[i], i, x, y);
  return out + "</svg>\n";
}

}  // namespace brine::figure
