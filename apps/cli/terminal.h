// The log on stderr, and numbers as people read them. Results go to stdout, all else to the log.
#pragma once

#include <cstdint>
#include <string>

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
// Columns of that terminal; 80 when unknown.
int terminal_columns();

std::string human_bytes(double bytes);      // "512 B", "1.5 KiB", "3.2 GiB"
std::string human_seconds(double seconds);  // "0.25 s", "12.3 s", "2m05s", "3h04m"
std::string human_count(double count);      // "950", "12.3 k", "1.2 M", "3.4 G"

}  // namespace brine
