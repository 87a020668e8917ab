// Tables and figures from rows alone.
#pragma once

#include <string>
#include <vector>

#include "apps/experiment/rows.h"

namespace brine::experiment {

// The first line has the names of the columns; the cells of a row that no row of the experiment
// fits are empty.
std::vector<std::vector<std::string>> table_cells(const TableSpec& spec,
                                                  const std::vector<Row>& rows);
std::string markdown(const std::vector<std::vector<std::string>>& cells);
// RFC 4180.
std::string csv(const std::vector<std::vector<std::string>>& cells);
// A standalone picture of 720 x 440 units. Lines differ by colour, dashes and marks, so that it can
// be read in grey. Throws if no row has both numbers.
std::string svg(const FigureSpec& spec, const std::vector<Row>& rows);

// Writes NAME.md and NAME.csv of every table and NAME.svg of every figure that has rows into the
// directory, and all of them into DIRECTORY/README.md; -> its text.
std::string render(const Plan& plan, const std::vector<Row>& rows,
                   const std::filesystem::path& directory);

}  // namespace brine::experiment
