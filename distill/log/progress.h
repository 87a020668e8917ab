// The progress display of a run: one moving line on a terminal, occasional plain lines elsewhere.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>

#include "distill/log/values.h"
#include "tensor/base/error.h"

namespace brine::distill {

// One step of training: loss terms and learning rates by name, in the order to show them.
struct StepReport {
  int64_t step = 0;    // from 1; steps finished
  int64_t total = 0;   // steps of the whole run; 0: unknown
  int64_t tokens = 0;  // of this step
  double done = 0;     // done share of a run with a time limit; 0: step / total
  Values values = {};
  // Of the student's mask (recall, ...), of some steps only: a line shows the newest.
  Values mask = {};
};

struct ProgressConfig {
  double every_seconds = 10;           // between plain lines
  int64_t every_steps = 0;             // also a plain line at multiples of this many steps; 0: by
                                       // time only
  int columns = 0;                     // terminal_columns(), for a progress bar; 0: plain lines
  std::function<double()> clock = {};  // a clock in seconds, never decreasing; empty: the system's
};

class Progress : NonCopyable {
 public:
  Progress(std::ostream& out, ProgressConfig config);
  ~Progress();  // moves the cursor to a new line

  // Returns the seconds since the step or line before.
  double step(const StepReport& report);
  // Prints a line that stays: evaluations and events. Its time does not count as time of the steps.
  void line(std::string_view text);

 private:
  std::string describe(const StepReport& report) const;
  double seconds_left(const StepReport& report) const;  // negative: unknown
  void draw_bar(const StepReport& report, const std::string& text);
  void clear_bar();

  std::ostream& out_;
  ProgressConfig config_;
  bool bar_shown_ = false;
  int64_t steps_seen_ = 0, tokens_ = 0;           // tokens since the line before
  double first_done_ = -1, busy_since_done_ = 0;  // at the first report that had a share
  double mark_ = 0;                               // end of the step or line before
  double busy_ = 0, busy_before_ = 0;  // seconds inside steps: in all, up to the line before
  double shown_ = -1;                  // time of the line before
  Values mask_ = {};                   // the newest
};

// Of the monotonic clock.
double steady_seconds();
// "approx 0.25, prob 1.5", also for values that are not finite.
std::string describe_values(const Values& values);

}  // namespace brine::distill
