// SVG around PNG maps.
#include "apps/figure/map_figure.h"

#include <cmath>
#include <cstdio>

#include "apps/figure/colours.h"
#include "apps/figure/line_chart.h"
#include "data/codec/packed_text.h"
#include "tensor/base/error.h"

namespace brine::figure {
namespace {

constexpr double kSide = 230, kGap = 62, kAbove = 40, kBelow = 44;  // of a panel
constexpr double kBar = 96;                                         // room of the colour bar

std::string formatted(const char* format, auto... values) {
  char text[512];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

std::string words(double x, double y, const char* anchor, const std::string& text,
                  const char* more = "") {
  return formatted("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"%s>", x, y, anchor, more) +
         xml_escaped(text) + "</text>\n";
}

std::string beginning(double width, double height, const std::string& title) {
  return formatted(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" "
             "font-family=\"sans-serif\" font-size=\"11\">\n<title>",
             width, height) +
         xml_escaped(title) + "</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n" +
         words(14, 22, "start", title, " font-size=\"14\"");
}

// The first, middle and last item of an axis.
std::vector<int64_t> marked(int64_t items) { return {0, items / 2, items - 1}; }

std::string drawn_panel(const MapPanel& panel, double x, double y) {
  std::string out = words(x, y - 6, "start", panel.title, " font-size=\"12\"");
  out += formatted(
             "<image x=\"%.1f\" y=\"%.1f\" width=\"%.0f\" height=\"%.0f\" "
             "preserveAspectRatio=\"none\" style=\"image-rendering:pixelated\" "
             "href=\"data:image/png;base64,",
             x, y, kSide, kSide) +
         data::base64(data::png(picture_of(panel))) + "\"/>\n";
  out += formatted(
      "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.0f\" height=\"%.0f\" fill=\"none\" "
      "stroke=\"#555\"/>\n",
      x, y, kSide, kSide);
  for (const int64_t at : marked(panel.column_items)) {
    const double place = x + kSide * (double(at) + 0.5) / double(panel.column_items);
    out += words(place, y + kSide + 14, "middle", std::to_string(at));
  }
  for (const int64_t at : marked(panel.row_items)) {
    const double place = y + kSide * (double(at) + 0.5) / double(panel.row_items);
    out += words(x - 4, place + 4, "end", std::to_string(at));
  }
  out += words(x + kSide / 2, y + kSide + 30, "middle", panel.x_label);
  const std::string turned =
      formatted(" transform=\"rotate(-90 %.1f %.1f)\"", x - 38, y + kSide / 2);
  return out + words(x - 38, y + kSide / 2, "middle", panel.y_label, turned.c_str());
}

std::string colour_bar(double x, double y) {
  constexpr int kSteps = 64;
  std::string out;
  for (int i = 0; i < kSteps; ++i) {
    out += formatted("<rect x=\"%.1f\" y=\"%.1f\" width=\"14\" height=\"%.2f\" fill=\"%s\"/>\n", x,
                     y + kSide * i / kSteps, kSide / kSteps + 0.5,
                     hex(map_colour(1 - (i + 0.5) / kSteps)).c_str());
  }
  for (double mass = 1; mass > kLeastMass / 2; mass /= 10) {
    const double place = y + kSide * (1 - place_of_mass(mass));
    out += words(x + 18, place + 4, "start", formatted("%g", mass));
  }
  return out + words(x, y - 6, "start", "mass");
}

}  // namespace

data::Picture picture_of(const MapPanel& panel) {
  check(int64_t(panel.places.size()) == panel.rows * panel.columns && !panel.places.empty(),
        "figure: ", panel.places.size(), " values for a map of ", panel.rows, " x ", panel.columns);
  data::Picture out(panel.columns, panel.rows);
  for (size_t i = 0; i < panel.places.size(); ++i) out.pixels[i] = map_colour(panel.places[i]);
  return out;
}

std::string svg(const std::string& title, const std::vector<MapPanel>& panels, int64_t across) {
  const int64_t down = (int64_t(panels.size()) + across - 1) / across;
  const double width = kGap + double(across) * (kSide + kGap) + kBar;
  const double height = 30 + double(down) * (kSide + kAbove + kBelow);
  std::string out = beginning(width, height, title);
  for (size_t i = 0; i < panels.size(); ++i) {
    const double x = kGap + double(int64_t(i) % across) * (kSide + kGap);
    const double y = 30 + kAbove + double(int64_t(i) / across) * (kSide + kAbove + kBelow);
    out += drawn_panel(panels[i], x, y);
  }
  return out + colour_bar(width - kBar, 30 + kAbove) + "</svg>\n";
}

std::string svg(const NumberGrid& grid) {
  check(!grid.values.empty() && !grid.values[0].empty(), "figure: a grid without numbers");
  constexpr double kCellWidth = 44, kCellHeight = 20, kLeft = 58, kTop = 46;
  const double columns = double(grid.values[0].size()), rows = double(grid.values.size());
  std::string out =
      beginning(kLeft + columns * kCellWidth + 20, kTop + rows * kCellHeight + 44, grid.title);
  for (size_t r = 0; r < grid.values.size(); ++r) {
    const double y = kTop + double(r) * kCellHeight;
    out += words(kLeft - 6, y + 14, "end", std::to_string(r));
    for (size_t c = 0; c < grid.values[r].size(); ++c) {
      const double x = kLeft + double(c) * kCellWidth, value = grid.values[r][c];
      out += formatted("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.0f\" height=\"%.0f\" fill=\"%s\"/>\n",
                       x, y, kCellWidth - 1, kCellHeight - 1, hex(map_colour(value)).c_str());
      // Dark letters on the bright half of the scale.
      const char* colour = value > 0.55 ? " fill=\"#000\"" : " fill=\"#fff\"";
      out += words(x + kCellWidth / 2, y + 14, "middle", formatted("%.2f", value), colour);
    }
  }
  for (size_t c = 0; c < grid.values[0].size(); ++c) {
    out += words(kLeft + (double(c) + 0.5) * kCellWidth, kTop + rows * kCellHeight + 14, "middle",
                 std::to_string(c));
  }
  out += words(kLeft + columns * kCellWidth / 2, kTop + rows * kCellHeight + 32, "middle",
               grid.x_label);
  const std::string turned =
      formatted(" transform=\"rotate(-90 16 %.1f)\"", kTop + rows * kCellHeight / 2);
  out += words(16, kTop + rows * kCellHeight / 2, "middle", grid.y_label, turned.c_str());
  return out + "</svg>\n";
}

}  // namespace brine::figure
