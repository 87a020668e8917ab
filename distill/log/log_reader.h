// Reading the log of a run: log.jsonl as distill/log/log.h describes it.
#pragma once

#include <string>
#include <vector>

#include "distill/log/log.h"

namespace brine::distill {

struct LogRecord {
  LogLine type = LogLine::step;
  int64_t step = 0;
  double time = 0;  // seconds since 1970
  // The numbers of a step or an evaluation in their order; NaN and infinities too.
  Values values = {};
  std::string text = {};  // of an event
};

// Every line of a file. A last line without its end, which a killed run leaves, is dropped; any
// other that is not a line of a log is Error("FILE:LINE: ...").
std::vector<LogRecord> read_log(const data::Path& file);

}  // namespace brine::distill
