// The only file that includes spdlog.
#include "apps/cli/terminal.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace brine {

namespace {

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> log = [] {
    auto made = std::make_shared<spdlog::logger>(
        "brine", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%v");
    made->set_level(spdlog::level::info);
    return made;
  }();
  return *log;
}

spdlog::level::level_enum spdlog_level(LogLevel level) {
  if (level == LogLevel::warning) return spdlog::level::warn;
  return level == LogLevel::info ? spdlog::level::info : spdlog::level::debug;
}

std::string print(const char* format, double value, const char* unit) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value, unit);
  return buffer;
}

// value with the first unit in which it is below `step`.
std::string scaled(double value, double step, const char* const* units, int count) {
  int unit = 0;
  // 999.95 would print as 1000.0
  while (unit + 1 < count && std::abs(value) >= (unit == 0 ? step : step * 0.99995)) {
    value /= step;
    ++unit;
  }
  return print(unit == 0 ? "%.0f%s" : "%.1f%s", value, units[unit]);
}

}  // namespace

void set_up_log(LogLevel least) {
  logger().set_level(spdlog_level(least));
  logger().set_pattern(least == LogLevel::detail ? "%T.%e %v" : "%v");
}

void log_line(LogLevel level, const std::string& text) {
  // A string_view argument is printed as it is: braces in it are no format.
  std::string_view prefix = level == LogLevel::warning ? "warning: " : "";
  logger().log(spdlog_level(level), "{}{}", prefix, std::string_view(text));
}

bool is_terminal() {
  if (!isatty(STDERR_FILENO)) return false;
  const char* kind = std::getenv("TERM");
  return kind != nullptr && *kind != '\0' && std::string_view(kind) != "dumb";
}

int terminal_columns() {
  winsize size{};
  bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

std::string human_bytes(double bytes) {
  const char* units[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
  return scaled(bytes, 1024, units, 6);
}

std::string human_count(double count) {
  const char* units[] = {"", " k", " M", " G", " T"};
  return scaled(count, 1000, units, 5);
}

std::string human_seconds(double seconds) {
  if (!std::isfinite(seconds)) return "unknown";
  if (seconds < 9.995) return print("%.2f%s", seconds, " s");
  if (seconds < 59.95) return print("%.1f%s", seconds, " s");
  auto whole = int64_t(seconds + 0.5);
  char buffer[64];
  if (whole < 3600) {
    std::snprintf(buffer, sizeof buffer, "%dm%02ds", int(whole / 60), int(whole % 60));
  } else {
    std::snprintf(buffer, sizeof buffer, "%lldh%02dm", static_cast<long long>(whole / 3600),
                  int(whole / 60 % 60));
  }
  return buffer;
}

}  // namespace brine
