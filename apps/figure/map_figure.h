// Maps as pictures: panels next to each other with axes and one colour scale, grids of numbers.
#pragma once

#include <string>
#include <vector>

#include "data/codec/png.h"

namespace brine::figure {

// A map with values in [0, 1] by rows, already on the scale of its colours.
struct MapPanel {
  std::string title, x_label, y_label;
  int64_t rows = 0, columns = 0;
  std::vector<double> places;               // of map_colour()
  int64_t row_items = 0, column_items = 0;  // what the axes count: tokens, columns
};

data::Picture picture_of(const MapPanel& panel);
// All panels in rows of `across`, as one SVG picture whose maps are embedded PNGs. The colour bar
// is the scale of masses.
std::string svg(const std::string& title, const std::vector<MapPanel>& panels, int64_t across);

// Numbers in [0, 1] by row and column as coloured cells with their values.
struct NumberGrid {
  std::string title, x_label, y_label;
  std::vector<std::vector<double>> values;  // [row][column]
};
std::string svg(const NumberGrid& grid);

}  // namespace brine::figure
