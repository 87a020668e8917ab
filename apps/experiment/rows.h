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
  // Without those of steps that have been run again with another definition.
  std::vector<Row> newest() const;
  // Of the step as it is defined now.
  bool has(const Step& step) const;
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

// A field of a row: one of its values, else one of its axes; null if it has none of the name.
Row field(const Row& row, const std::string& name);
// A field as a name of rows, columns and series: "4096", also for 4096.0.
std::string label_of(const Row& row, const std::string& name);
// The rows of a step whose fields have these values, in the order of their seeds. With `joined`,
// the values of the first row of that step which has the same value for every axis of both.
std::vector<Row> rows_of(const std::vector<Row>& all, const std::string& step,
                         const Variables& where, const std::string& joined = "");
// "3.142" for a number with so many digits after the point, a text as it is.
std::string shown(const Row& value, int64_t digits);

}  // namespace brine::experiment
