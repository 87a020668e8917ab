// The log on stderr; the only file that logs by spdlog.
#include "apps/terminal/terminal.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>
#include <utility>

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
  if (level == LogLevel::nothing) return spdlog::level::off;
  if (level == LogLevel::warning) return spdlog::level::warn;
  return level == LogLevel::info ? spdlog::level::info : spdlog::level::debug;
}

std::vector<std::string>* collected = nullptr;

}  // namespace

WarningList::WarningList(bool collects) {
  if (collects) collected = &warnings_;
}

WarningList::~WarningList() {
  collected = nullptr;
  for (const std::string& text : warnings_) log_line(LogLevel::warning, text);
}

std::vector<std::string> WarningList::take() { return std::exchange(warnings_, {}); }

void set_up_log(LogLevel least) {
  logger().set_level(spdlog_level(least));
  logger().set_pattern(least == LogLevel::detail ? "%T.%e %v" : "%v");
}

void log_line(LogLevel level, const std::string& text) {
  if (level == LogLevel::warning && collected) return collected->push_back(text);
  // A string_view argument is printed unchanged: braces in it are not format fields.
  std::string_view prefix = level == LogLevel::warning ? "warning: " : "";
  logger().log(spdlog_level(level), "{}{}", prefix, std::string_view(text));
}

bool is_terminal() {
  if (!isatty(STDERR_FILENO)) return false;
  const char* kind = std::getenv("TERM");
  return kind != nullptr && *kind != '\0' && std::string_view(kind) != "dumb";
}

distill::Messages log_messages() {
  return distill::Messages([](distill::Messages::Level level, const std::string& text) {
    using Level = distill::Messages::Level;
    log_line(level == Level::warning ? LogLevel::warning
             : level == Level::info  ? LogLevel::info
                                     : LogLevel::detail,
             text);
  });
}

}  // namespace brine
