// The log on stderr, and the commit of the program. Results are printed on stdout, everything else
// in the log.
#pragma once

#include <string>
#include <vector>

#include "distill/log/messages.h"
#include "tensor/base/error.h"

namespace brine {

// The commit that the program was built from, its first 12 digits; "-changed" after it when files
// had changes, "unknown" outside a repository.
std::string commit_name();

// detail is printed only with --verbose; lines have no level `nothing`, which drops all of them
enum class LogLevel { detail, info, warning, nothing };

// Lines below `least` are dropped.
void set_up_log(LogLevel least);
void log_line(LogLevel level, const std::string& text);

// log_info("read ", count, " windows"). Before set_up_log() they print as with LogLevel::info.
template <class... Parts>
void log_info(const Parts&... parts) {
  log_line(LogLevel::info, join(parts...));
}
template <class... Parts>
void log_detail(const Parts&... parts) {
  log_line(LogLevel::detail, join(parts...));
}
template <class... Parts>
void log_warning(const Parts&... parts) {
  log_line(LogLevel::warning, join(parts...));
}

// While one collects, warnings are kept for the JSON object that a command prints instead of being
// written to the log. Those that were not taken, since the command failed, are written at the end.
class WarningList : NonCopyable {
 public:
  explicit WarningList(bool collects);
  ~WarningList();
  std::vector<std::string> take();

 private:
  std::vector<std::string> warnings_;
};

// True when stderr is a terminal that supports cursor movement, for a progress bar.
bool is_terminal();

// Writes the messages of library calls to the log.
distill::Messages log_messages();

}  // namespace brine
