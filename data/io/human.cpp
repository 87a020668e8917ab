// Human-readable numbers: bytes, counts and durations; the width of a terminal.
#include "data/io/human.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

namespace brine {
namespace {

template <class... Parts>
std::string print(const char* format, Parts... parts) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, parts...);
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
  if (seconds < 9.995) return print("%.2f s", seconds);
  if (seconds < 59.95) return print("%.1f s", seconds);
  const long long whole = std::llround(std::fmin(seconds, 1e15));
  if (whole < 3600) return print("%lldm%02llds", whole / 60, whole % 60);
  if (whole < 86'400) return print("%lldh%02lldm", whole / 3600, whole / 60 % 60);
  return print("%lldd%02lldh", whole / 86'400, whole / 3600 % 24);
}

int terminal_columns(int descriptor) {
  if (!::isatty(descriptor)) return 0;
  struct winsize size = {};
  const bool known = ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

}  // namespace brine
