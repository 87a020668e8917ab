// The pictures of a report as files, each with its numbers as CSV.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/experiment/render.h"
#include "apps/figure/colours.h"
#include "apps/figure/map_figure.h"
#include "apps/report/report.h"
#include "data/io/file_io.h"

namespace brine::report {
namespace {

namespace fs = std::filesystem;

using Cells = std::vector<std::vector<std::string>>;

std::string four_digits(double x) {
  char text[40];
  std::snprintf(text, sizeof text, "%.4g", x);
  return text;
}

// A file name for each picture, in the directory.
class Pictures {
 public:
  explicit Pictures(const std::string& directory) : directory_(directory) {
    fs::create_directories(directory_);
  }
  void add(const std::string& name, const char* type, const std::string& bytes,
           const Cells& cells) {
    // Inputs may have the same names.
    std::string unique = name;
    for (int number = 2; !names_.insert(unique).second; ++number) unique = join(name, "-", number);
    data::write_file_atomic(directory_ / (unique + type), bytes);
    data::write_file_atomic(directory_ / (unique + ".csv"), experiment::csv(cells));
    ++count_;
  }
  int64_t count() const { return count_; }

 private:
  fs::path directory_;
  std::set<std::string> names_;
  int64_t count_ = 0;
};

struct Shown {
  const char* plane;
  const char* title;
};
constexpr Shown kByKey[] = {{"teacher", "teacher"},
                            {"widened", "estimate, widened to keys"},
                            {"mask", "mask: share of keys kept"},
                            {"student", "student on the mask"}};
constexpr Shown kByColumn[] = {{"estimate", "estimate, K columns"},
                               {"selected", "selected columns: share"},
                               {"mask", "their keys"}};

bool is_image(const Plane& plane) { return plane.id.rfind("image", 0) == 0; }

// Whether its columns are those of the estimate or of an image, not keys.
bool is_by_column(const Plane& plane) {
  return plane.id == "estimate" || plane.id == "selected" || is_image(plane);
}

// `map` is the one that the plane was made of: its blocks say what the axes count.
figure::MapPanel panel_of(const Plane& plane, const std::string& title,
                          const distill::CellMap& map) {
  const bool image = is_image(plane);
  figure::MapPanel out{.title = title,
                       .x_label = is_by_column(plane) ? "column" : "key",
                       .y_label = image ? "row" : "query",
                       .rows = plane.rows,
                       .columns = plane.columns,
                       .places = {},
                       .row_items = map.rows().items(),
                       .column_items = map.columns().items()};
  for (int64_t r = 0; r < plane.rows; ++r) {
    for (int64_t c = 0; c < plane.columns; ++c) {
      const double value = plane.value(r, c);
      out.places.push_back(plane.shares ? value / plane.most : figure::place_of_mass(value));
    }
  }
  return out;
}

const distill::CellMap& map_of(const distill::HeadMaps& maps, const std::string& plane) {
  if (plane == "teacher") return maps.teacher;
  if (plane == "widened") return maps.widened;
  if (plane == "student") return maps.student;
  if (plane == "estimate") return maps.estimate;
  return plane == "selected" ? maps.selected : maps.mask;
}

const Plane* plane_named(const std::vector<Plane>& planes, const std::string& id) {
  for (const Plane& plane : planes) {
    if (plane.id == id) return &plane;
  }
  return nullptr;
}

// The map that a plane was made of.
const distill::CellMap& map_of(const distill::HeadMaps& maps, const Plane& plane) {
  if (is_image(plane)) return maps.images[size_t(std::stoi(plane.id.substr(6)))];
  const std::string suffix = ".most";
  const bool largest = plane.id.ends_with(suffix);
  return map_of(maps, largest ? plane.id.substr(0, plane.id.size() - suffix.size()) : plane.id);
}

// One line for each row of each map, after two with the first and last key (column) of its cells:
// a cell of a long text is a block of queries and keys.
Cells numbers_of(const distill::HeadMaps& maps, const std::vector<Plane>& planes) {
  Cells out = {{"map", "row", "first query", "last query", "values of its columns"}};
  for (const Plane& plane : planes) {
    const distill::CellMap& map = map_of(maps, plane);
    const distill::Blocks &rows = map.rows(), &columns = map.columns();
    const std::string item = is_by_column(plane) ? "column" : "key";
    for (const bool last : {false, true}) {
      std::vector<std::string> line = {plane.id, (last ? "last " : "first ") + item, "", ""};
      for (int64_t c = 0; c < plane.columns; ++c)
        line.push_back(std::to_string(last ? columns.begin(c + 1) - 1 : columns.begin(c)));
      out.push_back(std::move(line));
    }
    for (int64_t r = 0; r < plane.rows; ++r) {
      std::vector<std::string> line = {plane.id, std::to_string(r), std::to_string(rows.begin(r)),
                                       std::to_string(rows.begin(r + 1) - 1)};
      for (int64_t c = 0; c < plane.columns; ++c) line.push_back(four_digits(plane.value(r, c)));
      out.push_back(std::move(line));
    }
  }
  return out;
}

void add_head(Pictures& pictures, const Attention& a, const distill::HeadMaps& maps) {
  const std::vector<Plane> planes = planes_of(maps, a.text.maps.causal);
  std::vector<figure::MapPanel> panels;
  auto add = [&](const Shown& shown) {
    const Plane* plane = plane_named(planes, shown.plane);
    if (plane) panels.push_back(panel_of(*plane, shown.title, map_of(maps, plane->id)));
  };
  for (const Shown& shown : kByKey) add(shown);
  if (!maps.estimate.empty()) {
    for (const Shown& shown : kByColumn) add(shown);
  }
  for (size_t i = 0; i < maps.images.size(); ++i) {
    const Plane* plane = plane_named(planes, join("image ", i));
    panels.push_back(panel_of(*plane, join("decoder, input of convolution ", i), maps.images[i]));
  }
  char name[64];
  std::snprintf(name, sizeof name, "-layer-%02lld-head-%02lld", (long long)maps.layer,
                (long long)maps.head);
  const std::string title = join(a.name, ", layer ", maps.layer, ", head ", maps.head, ", ",
                                 a.text.maps.tokens, " tokens in ", a.text.maps.cells, " cells");
  pictures.add(id_of(a.name) + name, ".svg", figure::svg(title, panels, 4),
               numbers_of(maps, planes));
}

void add_grid(Pictures& pictures, const std::string& id, const std::string& title,
              const std::vector<std::vector<double>>& values) {
  Cells cells = {{"layer", "head", "value"}};
  for (size_t layer = 0; layer < values.size(); ++layer) {
    for (size_t head = 0; head < values[layer].size(); ++head) {
      cells.push_back(
          {std::to_string(layer), std::to_string(head), four_digits(values[layer][head])});
    }
  }
  pictures.add(id, ".svg",
               figure::svg(figure::NumberGrid{
                   .title = title, .x_label = "head", .y_label = "layer", .values = values}),
               cells);
}

std::vector<std::vector<double>> recalls(const Attention& a) {
  std::vector<std::vector<double>> out;
  for (const distill::Recall& layer : a.text.recall) {
    out.emplace_back();
    for (int64_t h = 0; h < layer.heads(); ++h) out.back().push_back(layer.mean(recall::kMask, h));
  }
  return out;
}

// Layers by tokens; pictures have at most kWidest columns, the CSV file has every token.
void add_heat(Pictures& pictures, const Attention& a, bool student) {
  constexpr int64_t kWidest = 1024;
  const auto& heat = a.text.maps.heat;
  const distill::Blocks blocks(a.text.maps.tokens, std::min(a.text.maps.tokens, kWidest));
  constexpr int64_t kLayer = 8;  // pixels of a layer
  data::Picture picture(blocks.cells(), int64_t(heat.size()) * kLayer);
  Cells cells = {{"layer", "token", "text", "mass received"}};
  for (size_t layer = 0; layer < heat.size(); ++layer) {
    const std::vector<float>& values = student ? heat[layer].student : heat[layer].teacher;
    for (int64_t c = 0; c < blocks.cells(); ++c) {
      double sum = 0;
      for (int64_t t = blocks.begin(c); t < blocks.begin(c + 1); ++t) {
        sum += values[size_t(t)];
        cells.push_back({std::to_string(layer), std::to_string(t), a.tokens[size_t(t)],
                         four_digits(values[size_t(t)])});
      }
      const data::Colour colour =
          figure::map_colour(figure::place_of_mass(sum / double(blocks.size(c))));
      for (int64_t i = 0; i < kLayer; ++i) picture.at(c, int64_t(layer) * kLayer + i) = colour;
    }
  }
  pictures.add(id_of(a.name) + (student ? "-heat-student" : "-heat-teacher"), ".png",
               data::png(picture), cells);
}

// All heads as thumbnails of the teacher's map, by layer (down) and head (across), in frames whose
// colour is the recall.
void add_overview(Pictures& pictures, const Attention& a) {
  constexpr int64_t kThumbnail = 48, kFrame = 3, kStep = kThumbnail + 2 * kFrame + 2;
  data::Picture picture(a.heads * kStep, a.layers * kStep, {255, 255, 255});
  Cells cells = {{"layer", "head", "mask recall"}};
  const auto recall = recalls(a);
  for (const distill::HeadMaps& maps : a.text.maps.heads) {
    const bool has = !recall.empty();
    const double head_recall = has ? recall[size_t(maps.layer)][size_t(maps.head)] : 0;
    cells.push_back({std::to_string(maps.layer), std::to_string(maps.head),
                     has ? four_digits(head_recall) : std::string()});
    // Averaged, so that no cell is left out.
    const distill::CellMap teacher = distill::within(maps.teacher, kThumbnail);
    const int64_t N = teacher.rows().cells();
    for (int64_t y = 0; y < kThumbnail + 2 * kFrame; ++y) {
      for (int64_t x = 0; x < kThumbnail + 2 * kFrame; ++x) {
        const int64_t r = y - kFrame, c = x - kFrame;
        const bool inside = r >= 0 && c >= 0 && r < kThumbnail && c < kThumbnail;
        data::Colour colour = has ? figure::map_colour(head_recall) : data::Colour{200, 200, 200};
        if (inside) {
          colour = figure::map_colour(
              figure::place_of_mass(teacher.mass(r * N / kThumbnail, c * N / kThumbnail)));
        }
        picture.at(maps.head * kStep + x, maps.layer * kStep + y) = colour;
      }
    }
  }
  pictures.add(id_of(a.name) + "-overview", ".png", data::png(picture), cells);
}

}  // namespace

int64_t write_figures(const Report& report, const std::string& directory) {
  Pictures pictures(directory);
  for (const Attention& a : report.attention) {
    add_overview(pictures, a);
    if (!a.text.recall.empty())
      add_grid(pictures, id_of(a.name) + "-recall", "Mask recall, " + a.name, recalls(a));
    add_heat(pictures, a, false);
    if (a.sparse) add_heat(pictures, a, true);
    for (const distill::HeadMaps& maps : a.text.maps.heads) add_head(pictures, a, maps);
  }
  for (const Comparison& each : report.comparisons) {
    add_grid(pictures, id_of("overlap-" + each.first + "-" + each.second),
             "Keys that both masks keep, of all that one keeps: " + each.first + ", " + each.second,
             each.overlap);
  }
  for (const Chart& chart : report.charts)
    pictures.add(chart.id, ".svg", figure::svg(chart.lines), table_of(chart));
  return pictures.count();
}

}  // namespace brine::report
