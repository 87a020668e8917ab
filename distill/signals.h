// SIGINT and SIGTERM ask a run to save and stop; the trainer polls between steps.
#pragma once

namespace brine::distill {

// While one lives (one at a time), the first SIGINT or SIGTERM only sets a flag; a second SIGINT
// ends the process at once with status 130. Writing beyond `ulimit -f` becomes an error of the
// write instead of a deadly signal.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();  // restores the handlers that were there before
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  bool requested() const;
  const char* name() const;  // "SIGINT", "SIGTERM" or ""
};

}  // namespace brine::distill
