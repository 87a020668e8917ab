// The log of a run: JSON lines, TensorBoard events and the terminal, written by the same three
// calls; and lines that are read back.
#pragma once

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/config/schema.h"
#include "data/io/file_io.h"
#include "distill/log/event_file.h"
#include "distill/log/progress.h"

namespace brine::distill {

// What a line of log.jsonl tells of.
enum class LogLine { step, evaluation, event };
inline constexpr data::Named<LogLine> kLogLines[] = {
    {LogLine::step, "step"}, {LogLine::evaluation, "evaluation"}, {LogLine::event, "event"}};
// The type of a line that was read; empty: it has none.
std::optional<LogLine> type_of(const data::Json& line);

struct LogConfig {
  // Empty: a new run; an earlier log.jsonl in its directory is kept as log.jsonl.1, .2 and so on.
  // Set: what earlier processes logged after this step is dropped, here and in TensorBoard.
  std::optional<int64_t> resume_step = {};
  ProgressConfig progress = {};
};

// RUN_DIR/log.jsonl has one object per line, complete as soon as the call returns:
//   {"type": "step", "step", "total", "time", "seconds", "tokens", "tokens_per_second", VALUES...}
//   {"type": "evaluation", "step", "time", VALUES...}
//   {"type": "event", "step", "time", "text"}
// `time` is in seconds since 1970; values that are not finite are the strings "nan", "inf", "-inf".
// The TensorBoard tags are train/NAME and eval/NAME. A log that cannot be written is an Error.
class RunLog {
 public:
  RunLog(const data::Path& run_dir, std::ostream& terminal, const LogConfig& config = {});
  void step(const StepReport& report);
  // Values named "layer.*" are in the files only, not on the terminal.
  void evaluation(int64_t step, const Values& values);
  void event(std::string_view text);  // the last step reported

 private:
  data::Path path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  int64_t step_ = 0;
  Progress progress_;
  EventFile events_;
};

// Drops the lines of a log after `last_step`, and incomplete or unreadable ones, by replacing the
// file. Returns the number of unreadable lines. A log that is not a regular file is left alone.
int trim_log(const data::Path& log, int64_t last_step);

// Whether the log of a run contains an evaluation at this step.
bool has_evaluation(const data::Path& run_dir, int64_t step);

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
