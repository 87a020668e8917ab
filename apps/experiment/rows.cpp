// Reading, comparing and writing rows, and taking values from outputs.
#include "apps/experiment/rows.h"

#include <algorithm>
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

std::vector<Row> Rows::of(const Step& step) const {
  const std::string definition = step.definition();
  std::vector<Row> out;
  std::ranges::copy_if(rows_, std::back_inserter(out), [&](const Row& row) {
    return text_at(row, "name") == step.name && text_at(row, "definition") == definition;
  });
  return out;
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

}  // namespace brine::experiment
