// Human-readable numbers: bytes, counts and durations; the width of a terminal.
#include "data/io/human.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>

namespace brine {
namespace {

std::string print(const char* format, double value, const char* unit) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value, unit);
  return buffer;
}

// The value with the first unit in which it is below `step`.
std::string scaled(double value, double step, const char* const* units, int count) {
  int unit = 0;
  // 999.95 would print as 1000.0
  while (unit + 1 < count && std::abs(value) >= (unit == 0 ? step : step * 0.99995)) {
    value /= step;
    ++unit;
  }
  return print(unit == 0 ? "%.0f%s" : "%.1f%s", value, units[unit]);
}

std::string two_units(int64_t large, const char* large_unit, int64_t small,
                      const char* small_unit) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%lld%s%02d%s", static_cast<long long>(large), large_unit,
                int(small), small_unit);
  return buffer;
}

}  // namespace

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
  const auto whole = int64_t(std::llround(std::fmin(seconds, 1e15)));
  if (whole < 3600) return two_units(whole / 60, "m", whole % 60, "s");
  if (whole < 86'400) return two_units(whole / 3600, "h", whole / 60 % 60, "m");
  return two_units(whole / 86'400, "d", whole / 3600 % 24, "h");
}

int terminal_columns(int descriptor) {
  if (!::isatty(descriptor)) return 0;
  struct winsize size = {};
  const bool known = ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

}  // namespace brine
