// Tables as Markdown and CSV, and the page of an experiment.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/experiment/render.h"
#include "data/io/file_io.h"

namespace brine::experiment {
namespace {

// The values of a field, in the order of their first rows.
std::vector<std::string> distinct(const std::vector<Row>& rows, const std::string& name) {
  std::vector<std::string> out;
  for (const Row& row : rows) {
    const std::string value = label_of(row, name);
    if (std::find(out.begin(), out.end(), value) == out.end()) out.push_back(value);
  }
  return out;
}

std::vector<std::string> key_of(const Row& row, const std::vector<std::string>& names) {
  std::vector<std::string> key;
  for (const std::string& name : names) key.push_back(label_of(row, name));
  return key;
}

std::string cell(const std::vector<Row>& rows, const std::string& name, int64_t digits) {
  std::string out;
  for (const Row& row : rows) {
    const std::string value = shown(field(row, name), digits);
    if (!value.empty()) out += (out.empty() ? "" : ", ") + value;
  }
  return out;
}

std::string markdown_escaped(const std::string& text) {
  std::string out;
  for (char c : text) out += c == '|' ? "\\|" : std::string(1, c);
  return out;
}

// Which program on which machine made the rows.
std::string origin(const std::vector<Row>& rows) {
  std::set<std::string> commits, machines;
  double seconds = 0;
  std::set<std::string> counted;
  for (const Row& row : rows) {
    commits.insert(row.value("commit", ""));
    machines.insert(row.value("machine", ""));
    if (counted.insert(row.value("name", "")).second) seconds += row.value("seconds", 0.0);
  }
  std::string out = "Commit";
  for (const std::string& one : commits) out += " " + one;
  for (const std::string& one : machines) out += "; " + one;
  return join(out, "; ", int64_t(seconds + 0.5), " seconds of runs.");
}

}  // namespace

std::vector<std::vector<std::string>> table_cells(const TableSpec& spec,
                                                  const std::vector<Row>& all) {
  const std::vector<Row> rows = rows_of(all, spec.step, spec.where, spec.joined);
  const std::vector<std::string> columns =
      spec.columns.empty() ? std::vector<std::string>{""} : distinct(rows, spec.columns);
  std::vector<std::vector<std::string>> cells(1);
  for (const std::string& name : spec.rows) cells[0].push_back(name);
  for (const std::string& value : columns) {
    for (const std::string& name : spec.values) {
      cells[0].push_back(spec.columns.empty() ? name
                                              : join(name, ", ", spec.columns, " = ", value));
    }
  }
  std::vector<std::vector<std::string>> keys;
  for (const Row& row : rows) {
    std::vector<std::string> key = key_of(row, spec.rows);
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(std::move(key));
  }
  for (const std::vector<std::string>& key : keys) {
    std::vector<std::string> line = key;
    for (const std::string& value : columns) {
      std::vector<Row> fitting;
      for (const Row& row : rows) {
        if (key_of(row, spec.rows) != key) continue;
        if (!spec.columns.empty() && label_of(row, spec.columns) != value) continue;
        fitting.push_back(row);
      }
      for (const std::string& name : spec.values) line.push_back(cell(fitting, name, spec.digits));
    }
    cells.push_back(std::move(line));
  }
  return cells;
}

std::string markdown(const std::vector<std::vector<std::string>>& cells) {
  std::string out;
  for (size_t r = 0; r < cells.size(); ++r) {
    out += "|";
    for (const std::string& text : cells[r]) out += " " + markdown_escaped(text) + " |";
    out += "\n";
    if (r > 0) continue;
    out += "|";
    for (size_t c = 0; c < cells[0].size(); ++c) out += " --- |";
    out += "\n";
  }
  return out;
}

std::string csv(const std::vector<std::vector<std::string>>& cells) {
  std::string out;
  for (const auto& line : cells) {
    for (size_t c = 0; c < line.size(); ++c) {
      if (c) out += ",";
      if (line[c].find_first_of(",\"\r\n") == std::string::npos) {
        out += line[c];
        continue;
      }
      out += '"';
      for (char each : line[c]) out += each == '"' ? "\"\"" : std::string(1, each);
      out += '"';
    }
    out += "\r\n";
  }
  return out;
}

std::string render(const Plan& plan, const std::vector<Row>& rows,
                   const std::filesystem::path& directory) {
  std::string page = "# " + plan.title + "\n\n";
  if (!plan.paper.empty()) page += "The paper's " + plan.paper + ", scale " + plan.scale + ".\n\n";
  for (const TableSpec& table : plan.tables) {
    const auto cells = table_cells(table, rows);
    if (cells.size() < 2) continue;
    data::write_file_atomic(directory / (table.name + ".md"), markdown(cells));
    data::write_file_atomic(directory / (table.name + ".csv"), csv(cells));
    page += "## " + table.title + "\n\n" + markdown(cells) + "\n";
  }
  for (const FigureSpec& figure : plan.figures) {
    if (rows_of(rows, figure.step, figure.where).empty()) continue;
    data::write_file_atomic(directory / (figure.name + ".svg"), svg(figure, rows));
    page += join("![", figure.title, "](", figure.name, ".svg)\n\n");
  }
  page += origin(rows) + "\n";
  data::write_file_atomic(directory / "README.md", page);
  return page;
}

}  // namespace brine::experiment
