// The log on stderr. Results go to stdout, all else to the log.
#pragma once

#include <string>

#include "distill/log/messages.h"
#include "tensor/error.h"

namespace brine {

enum class LogLevel { detail, info, warning };  // detail is printed with --verbose only

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

// True when stderr is a terminal that understands cursor movement: a place for a progress bar.
bool is_terminal();

// What a library call says goes to the log.
distill::Messages log_messages();

}  // namespace brine
