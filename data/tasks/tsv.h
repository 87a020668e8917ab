// Tab-separated files as GLUE distributes them: no quoting (a quote is a character of the text),
// with or without a byte order mark, LF or CRLF, with or without the last newline.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/io/file_io.h"
#include "tensor/base/error.h"

namespace brine::data {

class TsvReader : NonCopyable {
 public:
  // `columns` names the fields of a file without a header line. With `span_lines` a row with too
  // few fields continues in the next lines, with a space instead of the line break. Without
  // `columns` the first line names them or, with `header` false, has as many, called 1, 2, ...
  explicit TsvReader(const Path& file, std::vector<std::string> columns = {},
                     bool span_lines = false, bool header = true);

  // The index of a column in a row; a missing column is an error that lists the existing ones and
  // ends with `hint`.
  size_t column(const std::string& name, const char* hint = "") const;

  // The next row, valid until the next call; false at the end. A row with another number of fields
  // than there are columns is an error.
  bool next();
  const std::string_view& operator[](size_t column) const { return fields_[column]; }
  // Throws Error("FILE:LINE: ...") about the row.
  template <class... Parts>
  void check_row(bool ok, const Parts&... parts) const;
  // "FILE:LINE" of the row's first line.
  std::string where() const;

 private:
  bool next_line(std::string_view& line);

  std::string file_, text_;
  std::vector<std::string> columns_;
  bool span_lines_;
  std::string_view rest_ = text_;    // the lines that were not read
  int64_t line_ = 0, row_line_ = 0;  // from 1
  std::string joined_;
  std::vector<std::string_view> fields_;
};

template <class... Parts>
void TsvReader::check_row(bool ok, const Parts&... parts) const {
  if (!ok) [[unlikely]]
    check_format(false, where(), ": ", parts...);
}

}  // namespace brine::data
