// Lines of a log back to numbers.
#include "distill/log/log_reader.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "data/io/json.h"
#include "data/io/printable.h"

namespace brine::distill {
namespace {

// "nan", "inf" and "-inf" are what RunLog writes for them.
std::optional<double> number(const data::Json& value) {
  if (value.is_number()) return value.get<double>();
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (value == "inf") return std::numeric_limits<double>::infinity();
  if (value == "-inf") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

LogRecord record_of(const data::Json& line, const std::string& where) {
  const std::optional<LogLine> type = type_of(line);
  check_format(type.has_value(), where, ": is not a line of a log");
  const bool has_step = line.contains("step") && line["step"].is_number_integer();
  check_format(has_step, where, ": a line of a log without a step");
  LogRecord out{.type = *type, .step = line["step"].get<int64_t>()};
  for (const auto& [name, value] : line.items()) {
    if (name == "type" || name == "step") continue;
    if (name == "text" && value.is_string()) {
      out.text = value.get<std::string>();
      continue;
    }
    const std::optional<double> x = number(value);
    check_format(x.has_value(), where, ": ", data::shown(name), " is not a number");
    if (name == "time") {
      out.time = *x;
    } else {
      out.values.emplace_back(name, *x);
    }
  }
  return out;
}

}  // namespace

std::vector<LogRecord> read_log(const data::Path& file) {
  const std::string text = data::read_file(file, uint64_t(1) << 30);
  std::vector<LogRecord> out;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == text.npos) break;
    const std::string where = join(file.string(), ":", ++number);
    const data::Json line = parse_json_or_discard(text.substr(begin, end - begin), where);
    check_format(!line.is_discarded(), where, ": is not JSON");
    out.push_back(record_of(line, where));
    begin = end + 1;
  }
  return out;
}

}  // namespace brine::distill
