// Reading, comparing and writing rows, and taking values from outputs.
#include "apps/experiment/rows.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/io/file_io.h"
#include "data/io/json.h"

namespace brine::experiment {
namespace {

std::string text_at(const Row& row, const char* key) {
  return row.contains(key) && row[key].is_string() ? row[key].get<std::string>() : "";
}

// A JSON pointer (RFC 6901) in which -1 is also the last element of a list; null if nothing
// matches.
Row at(const Row& object, const std::string& pointer) {
  size_t last = pointer.find("/-1");
  while (last != pointer.npos && last + 3 < pointer.size() && pointer[last + 3] != '/')
    last = pointer.find("/-1", last + 1);
  if (last == pointer.npos) {
    const Row::json_pointer where(pointer);
    return object.contains(where) ? object.at(where) : Row();
  }
  const Row parent = at(object, pointer.substr(0, last));
  const std::string rest = pointer.substr(last + 3);
  if (parent.is_array()) return parent.empty() ? Row() : at(parent.back(), rest);
  return parent.is_object() && parent.contains("-1") ? at(parent.at("-1"), rest) : Row();
}

}  // namespace

Rows::Rows(const std::filesystem::path& directory) : file_(directory / "rows.jsonl") {
  if (!std::filesystem::exists(file_)) return;
  const std::string text = data::read_file(file_, 1 << 28);
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == text.npos) break;
    Row row = parse_json_or_discard(text.substr(begin, end - begin), file_.string());
    check(row.is_object() && row.contains("name") && row.contains("step"), file_.string(), ":",
          ++number, ": not a row");
    rows_.push_back(std::move(row));
    begin = end + 1;
  }
}

bool Rows::has(const Step& step) const {
  const std::string definition = step.definition();
  return std::any_of(rows_.begin(), rows_.end(), [&](const Row& row) {
    return text_at(row, "name") == step.name && text_at(row, "definition") == definition;
  });
}

void Rows::write() const {
  std::string text;
  for (const Row& row : rows_) text += json_text(row) + "\n";
  data::write_file_atomic(file_, text);
}

void Rows::add(const std::vector<Row>& rows) {
  rows_.insert(rows_.end(), rows.begin(), rows.end());
  write();
}

std::vector<Row> Rows::newest() const {
  std::map<std::string, std::string> definitions;
  for (const Row& row : rows_) definitions[text_at(row, "name")] = text_at(row, "definition");
  std::vector<Row> out = rows_;
  std::erase_if(out, [&](const Row& row) {
    return definitions[text_at(row, "name")] != text_at(row, "definition");
  });
  return out;
}

std::vector<Row> values_of(const Step& step, const std::string& text) {
  std::vector<Row> out;
  auto add = [&](const Row& object, bool may_lack) {
    Row values = Row::object();
    for (const auto& [name, pointer] : step.take) {
      values[name] = at(object, pointer);
      if (!values[name].is_null()) continue;
      check(may_lack, step.name, ": its output has no ", pointer);
      return;
    }
    out.push_back(std::move(values));
  };
  if (!step.lines.empty()) {
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) {
      const Row object = parse_json_or_discard(line, step.lines);
      if (object.is_object()) add(object, true);
    }
    check(!out.empty(), step.name, ": no line of ", step.lines, " has all of its values");
    return out;
  }
  const Row whole = parse_json_or_discard(text, step.name);
  check(whole.is_object(), step.name, ": its output is not a JSON object");
  if (step.rows.empty()) {
    add(whole, false);
    return out;
  }
  const Row list = at(whole, step.rows);
  check(list.is_array(), step.name, ": its output has no list ", step.rows);
  for (const Row& object : list) add(object, true);
  check(!out.empty(), step.name, ": no element of ", step.rows, " has all of its values");
  return out;
}

Row field(const Row& row, const std::string& name) {
  for (const char* part : {"values", "axes"}) {
    if (row.contains(part) && row[part].contains(name)) return row[part][name];
  }
  return {};
}

namespace {

bool same_axes(const Row& a, const Row& b) {
  const Row of_a = a.value("axes", Row::object()), of_b = b.value("axes", Row::object());
  for (const auto& [name, value] : of_a.items()) {
    if (of_b.contains(name) && of_b[name] != value) return false;
  }
  return true;
}

// The values of `joined` that the row does not have.
void add_values(Row& row, const Row& joined) {
  const Row values = joined.value("values", Row::object());
  for (const auto& [name, value] : values.items()) {
    if (!row["values"].contains(name)) row["values"][name] = value;
  }
}

}  // namespace

std::vector<Row> rows_of(const std::vector<Row>& all, const std::string& step,
                         const Variables& where, const std::string& joined) {
  std::vector<Row> out;
  for (const Row& row : all) {
    const bool fits = std::all_of(where.begin(), where.end(), [&](const auto& wanted) {
      return label_of(row, wanted.first) == wanted.second;
    });
    if (text_at(row, "step") == step && fits) out.push_back(row);
  }
  // Runs that go on side by side end in any order; cells have their seeds in order.
  auto seed = [](const Row& row) {
    const std::string text = label_of(row, "seed");
    return std::pair(text.size(), text);
  };
  std::stable_sort(out.begin(), out.end(),
                   [&](const Row& a, const Row& b) { return seed(a) < seed(b); });
  for (Row& row : out) {
    const auto other = std::find_if(all.begin(), all.end(), [&](const Row& each) {
      return !joined.empty() && text_at(each, "step") == joined && same_axes(row, each);
    });
    if (other != all.end()) add_values(row, *other);
  }
  return out;
}

std::string label_of(const Row& row, const std::string& name) {
  const Row value = field(row, name);
  const bool whole =
      value.is_number_float() && std::floor(value.get<double>()) == value.get<double>();
  return shown(value, whole ? 0 : 6);
}

std::string shown(const Row& value, int64_t digits) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "";
  if (!value.is_number() || value.is_number_integer()) return json_text(value);
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", int(digits), value.get<double>());
  return text;
}

}  // namespace brine::experiment
