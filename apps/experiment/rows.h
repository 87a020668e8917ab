// The rows of an experiment: one JSON object for each result, with what made it.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "apps/experiment/plan.h"

namespace brine::experiment {

using Row = nlohmann::ordered_json;

// "experiment", "scale", "step", "name", "axes", "values", "command", "definition", "commit",
// "seed", "machine", "seconds" and "date" of each row; a step that makes a directory has no values.
class Rows {
 public:
  // Of DIRECTORY/rows.jsonl, if it is there. A last line that was cut off is dropped.
  explicit Rows(const std::filesystem::path& directory);

  const std::vector<Row>& all() const { return rows_; }
  // Of the step as it is defined now.
  std::vector<Row> of(const Step& step) const;
  // The file is replaced as a whole: a crash leaves it without or with all of the new rows.
  void add(const std::vector<Row>& rows);

 private:
  void write() const;

  std::filesystem::path file_;
  std::vector<Row> rows_;
};

// The values that a step takes from its output (or its file of lines), one object for each row.
// Throws if the output is not JSON or lacks one of them; a line that lacks one gives none.
std::vector<Row> values_of(const Step& step, const std::string& text);

}  // namespace brine::experiment
