// Rows and fields of a TSV file.
#include "data/tasks/tsv.h"

#include <algorithm>
#include <set>

#include "data/io/utf8.h"

namespace brine::data {
namespace {

constexpr int kMaxLines = 16;  // of one row

void split_fields(std::string_view line, std::vector<std::string_view>& fields) {
  fields.clear();
  for (size_t from = 0;;) {
    size_t tab = line.find('\t', from);
    fields.push_back(line.substr(from, tab - from));
    if (tab == std::string_view::npos) return;
    from = tab + 1;
  }
}

}  // namespace

TsvReader::TsvReader(const Path& file, std::vector<std::string> columns, bool span_lines,
                     bool header_line)
    : file_(file.string()),
      text_(read_text(file_)),
      columns_(std::move(columns)),
      span_lines_(span_lines) {
  if (!columns_.empty()) return;
  std::string_view header;
  next_line(header);
  split_fields(header, fields_);
  if (!header_line) {
    for (size_t i = 0; i < fields_.size(); ++i) columns_.push_back(std::to_string(i + 1));
    rest_ = text_;
    line_ = 0;
    return;
  }
  std::set<std::string_view> names;
  for (std::string_view name : fields_) {
    check_format(names.insert(name).second, file_, ":1: column '", name,
                 "' occurs twice in the header");
    columns_.emplace_back(name);
  }
}

size_t TsvReader::column(const std::string& name, const char* hint) const {
  auto found = std::find(columns_.begin(), columns_.end(), name);
  if (found == columns_.end()) {
    std::string list;
    for (const std::string& column : columns_) list += (list.empty() ? "'" : ", '") + column + "'";
    throw Error(join(file_, ":1: no column '", name, "'; its columns are ", list, hint),
                ErrorKind::format);
  }
  return size_t(found - columns_.begin());
}

std::string TsvReader::where() const { return join(file_, ":", row_line_); }

bool TsvReader::next_line(std::string_view& line) {
  if (rest_.empty()) return false;
  line = take_part(rest_, '\n');
  if (line.ends_with('\r')) line.remove_suffix(1);
  ++line_;
  return true;
}

bool TsvReader::next() {
  std::string_view line;
  if (!next_line(line)) return false;
  row_line_ = line_;
  split_fields(line, fields_);
  if (span_lines_ && fields_.size() < columns_.size()) {
    joined_ = line;
    for (int lines = 1; fields_.size() < columns_.size() && lines < kMaxLines; ++lines) {
      if (!next_line(line)) break;
      joined_.append(" ").append(line);
      split_fields(joined_, fields_);
    }
  }
  check_row(
      fields_.size() == columns_.size(), fields_.size(), " fields, the file has ", columns_.size(),
      " columns",
      line_ > row_line_ ? join(" (lines ", row_line_, " to ", line_, " read as one row)") : "");
  return true;
}

}  // namespace brine::data
