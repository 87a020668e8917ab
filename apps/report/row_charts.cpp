// Charts of an experiment's rows, and of the tables that a sweep writes.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>

#include "apps/report/charts.h"
#include "data/io/file_io.h"
#include "data/io/json.h"
#include "data/io/printable.h"

namespace brine::report {
namespace {

using experiment::Row;

// What numbers can be over, the first that rows have.
constexpr const char* kOver[] = {"tokens", "k", "step"};

std::optional<double> number(Row value) {
  if (value.is_string()) value = parse_json_or_discard(value.get<std::string>());
  if (!value.is_number() || !std::isfinite(value.get<double>())) return std::nullopt;
  return value.get<double>();
}

bool is_text(const Row& value) { return value.is_string() && !number(value); }

// Section, unit and axis of a value by its name.
void describe(Chart& chart, const std::string& x, const std::string& name) {
  chart.section = x == "step" ? Section::curves : x == "k" ? Section::trade : Section::cost;
  chart.lines.x_label = x == "k" ? "kept keys k" : x;
  chart.lines.y_label = name == "ms" ? "milliseconds" : name;
  chart.lines.log_x = x != "step";
  chart.lines.log_y = x == "tokens" || name.find("perplexity") != name.npos;
}

// "4096 8192": a list of lengths that one run went through.
bool is_list_of_numbers(const std::string& text) {
  return text.find(' ') != text.npos && text.find_first_not_of("0123456789 ") == text.npos;
}

// The axes and texts of a row other than x and the seed, by their names. Texts that are flags of
// the command are another spelling of an axis with a name.
std::map<std::string, std::string> parts_of(const Row& row, const std::string& x) {
  std::map<std::string, std::string> out;
  for (const char* part : {"axes", "values"}) {
    if (!row.contains(part) || !row[part].is_object()) continue;
    for (const auto& [key, value] : row[part].items()) {
      if (key == x || key == "seed") continue;
      std::string text;
      if (part[0] == 'a' && number(value)) {
        text = key + " " + experiment::label_of(row, key);
      } else if (is_text(value)) {
        text = value.get<std::string>();
      }
      if (!text.empty() && text[0] != '-' && !is_list_of_numbers(text)) out.emplace(key, text);
    }
  }
  return out;
}

// Whether `text` says the words of `part`: "sea light, k = 32" those of "sea" and of "k 32".
bool says(const std::string& text, const std::string& part) {
  auto contains = [&](const std::string& words) {
    auto inside = [&](size_t at) {
      return at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) ||
                                  text[at] == '-' || text[at] == '_');
    };
    for (size_t at = text.find(words); at != text.npos; at = text.find(words, at + 1)) {
      if ((at == 0 || !inside(at - 1)) && !inside(at + words.size())) return true;
    }
    return false;
  };
  const size_t space = part.find(' ');
  return contains(part) ||
         (space != part.npos && contains(part.substr(0, space) + " =" + part.substr(space)));
}

// Names of lines in a legend: the parts in which the rows of a step differ, without those that
// another part says too.
class Series {
 public:
  Series(const std::vector<const Row*>& rows, const std::string& x) : x_(x) {
    for (const Row* row : rows) {
      for (const auto& [key, text] : parts_of(*row, x)) texts_[key].insert(text);
    }
  }
  std::string name(const Row& row) const {
    std::vector<std::string> differing;
    for (const auto& [key, text] : parts_of(row, x_))
      if (texts_.at(key).size() > 1) differing.push_back(text);
    std::string out;
    for (size_t i = 0; i < differing.size(); ++i) {
      bool said = false;
      for (size_t other = 0; other < differing.size(); ++other) {
        if (other == i || !says(differing[other], differing[i])) continue;
        // Of two that say the same the first stays.
        said = said || other < i || !says(differing[i], differing[other]);
      }
      if (!said) out += (out.empty() ? "" : ", ") + differing[i];
    }
    return out;
  }

 private:
  std::string x_;
  std::map<std::string, std::set<std::string>> texts_;
};

// The place of a line by its name: full attention, which all are compared with, then SEA, then the
// others in the order of their rows. Pages show the first ones of many.
int place_of(const std::string& name) {
  auto any = [&](std::initializer_list<const char*> words) {
    return std::any_of(words.begin(), words.end(),
                       [&](const char* word) { return says(name, word); });
  };
  return any({"dense", "flash", "full"}) ? 0 : any({"sea", "student"}) ? 1 : 2;
}

std::string x_of(const std::vector<const Row*>& rows) {
  for (const char* candidate : kOver) {
    std::set<double> places;
    for (const Row* row : rows) {
      if (const auto x = number(experiment::field(*row, candidate))) places.insert(*x);
    }
    if (places.size() > 1) return candidate;
  }
  return "";
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

}  // namespace

Charts row_charts(const std::string& name, const std::vector<Row>& rows) {
  std::vector<std::pair<std::string, std::vector<const Row*>>> steps;
  for (const Row& row : rows) {
    const std::string step = experiment::shown(row["step"], 0);
    auto found = std::find_if(steps.begin(), steps.end(),
                              [&](const auto& each) { return each.first == step; });
    if (found == steps.end()) found = steps.insert(steps.end(), {step, {}});
    found->second.push_back(&row);
  }
  Charts out;
  for (const auto& [step, own] : steps) {
    const std::string x = x_of(own);
    if (x.empty()) continue;
    const Series series(own, x);
    std::map<std::string, Chart> by_value;
    for (const Row* row : own) {
      const auto at = number(experiment::field(*row, x));
      if (!at || !row->contains("values") || !(*row)["values"].is_object()) continue;
      for (const auto& [value, content] : (*row)["values"].items()) {
        const auto y = value == x || content.is_string() ? std::nullopt : number(content);
        if (!y) continue;
        Chart& chart = by_value[value];
        if (chart.id.empty()) {
          chart.id = id_of(join(name, "-", step, "-", value));
          chart.lines.title = join(value, ", step ", step, " of ", name);
          chart.note = "Rows of the experiment " + name + "; a point is the mean over its seeds.";
          describe(chart, x, value);
        }
        add_point(chart, series.name(*row), *at, *y);
      }
    }
    for (auto& [value, chart] : by_value) {
      auto& lines = chart.lines.lines;
      std::stable_sort(lines.begin(), lines.end(), [](const auto& a, const auto& b) {
        return place_of(a.name) < place_of(b.name);
      });
      out.push_back(std::move(chart));
    }
  }
  return out;
}

bool is_sweep(const std::string& text) {
  return text.rfind("attention\tk\t", 0) == 0 || text.rfind("k\tquery_skip\t", 0) == 0;
}

Charts sweep_charts(const std::string& file, const std::string& text) {
  check_format(is_sweep(text), file, ": is not a table of brine sweep");
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  const std::vector<std::string> names = cells_of(line);
  std::vector<Row> rows;
  for (size_t at = 2; std::getline(lines, line); ++at) {
    const std::vector<std::string> cells = cells_of(line);
    check_format(cells.size() == names.size(), file, ":", at, ": ", cells.size(), " cells, wanted ",
                 names.size());
    Row row = {{"step", "sweep"}, {"axes", Row::object()}, {"values", Row::object()}};
    for (size_t i = 0; i < cells.size(); ++i) {
      const bool is_axis = names[i] == "k" || names[i] == "query_skip" || names[i] == "attention";
      if (is_axis) {
        row["axes"][names[i]] = cells[i];
      } else if (!cells[i].empty()) {
        const Row value = parse_json_or_discard(cells[i]);
        check_format(value.is_number(), file, ":", at, ": ", data::shown(names[i]),
                     " is not a number");
        row["values"][names[i]] = value;
      }
    }
    rows.push_back(std::move(row));
  }
  // Dense attention keeps all keys: it is drawn as a line at every k.
  std::set<std::string> keys;
  for (const Row& row : rows) {
    if (number(row["axes"]["k"])) keys.insert(row["axes"]["k"].get<std::string>());
  }
  std::vector<Row> all;
  for (const Row& row : rows) {
    if (number(row["axes"]["k"])) {
      all.push_back(row);
      continue;
    }
    for (const std::string& k : keys) {
      all.push_back(row);
      all.back()["axes"]["k"] = k;
    }
  }
  Charts charts = row_charts(data::Path(file).stem().string(), all);
  for (Chart& chart : charts) {
    chart.note =
        "Measured by brine sweep on the same windows; a student with blocks keeps more "
        "than k keys, and the masks next to it as many.";
  }
  return charts;
}

}  // namespace brine::report
