// Line charts as standalone SVG pictures.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace brine::figure {

struct Line {
  std::string name;                              // "" for the only line
  std::map<double, std::vector<double>> points;  // all y at an x; the line is through their means
};

struct LineChart {
  std::string title, x_label, y_label;
  bool log_x = false, log_y = false;
  std::vector<Line> lines;
};

// A standalone picture of 720 x 440 units or more. Lines differ by colour, dashes and marks, so
// that it can be read in grey; a line of more than 60 points has no marks. Throws without lines,
// and for a number without a place on a logarithmic axis.
std::string svg(const LineChart& chart);

// The text with the characters that XML and HTML reserve as references.
std::string xml_escaped(const std::string& text);
double mean(const std::vector<double>& values);

}  // namespace brine::figure
