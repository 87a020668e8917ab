// The line charts of a report, with what a reader needs to judge them, as data.
#pragma once

#include <string>
#include <vector>

#include "apps/figure/line_chart.h"
#include "data/config/schema.h"
#include "distill/evaluation/recall.h"
#include "distill/log/log_reader.h"

namespace brine::report {

// The section of the page where a chart is.
enum class Section { curves, health, trade };

struct Chart {
  std::string id;  // of a-z, 0-9 and '-'
  Section section = Section::curves;
  figure::LineChart lines;
  std::string note;  // what was measured, in a sentence

  // What it shows in words, for readers who do not see it.
  std::string described() const;
};
using Charts = std::vector<Chart>;

// a-z, 0-9 and '-' of any text.
std::string id_of(const std::string& text);

struct Curves {
  std::string run;  // its name in legends
  std::vector<distill::LogRecord> log;
};
// A chart for each value that any of the runs logged, and one for the values by layer of each run
// ("layer.3.recall").
Charts curve_charts(const std::vector<Curves>& runs);

// Mask recall by layer next to its floors and ceilings with as many keys; `name` is the student's.
Chart health_chart(const std::string& name, const std::vector<distill::Recall>& layers);

// Of a table that `brine sweep --out` wrote, with floors or without; `file` starts messages about
// lines that are not of such a table.
Charts sweep_charts(const std::string& file, const std::string& text);
// Whether a text begins like such a table.
bool is_sweep(const std::string& text);

}  // namespace brine::report
