// Rows of measurements as a table and as JSON.
#include "apps/bench/report.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "data/io/human.h"

namespace brine::bench {
namespace {

// "0.62", "12.3", "4567"
std::string figure(double x) {
  char text[32];
  const int digits = x != 0 && x < 10 ? 2 : (x < 100 ? 1 : 0);
  std::snprintf(text, sizeof text, "%.*f", digits, x);
  return text;
}

}  // namespace

void print_title() {
  std::printf("%-34s %-22s %10s %18s %7s %7s %11s\n", "name", "shape", "ms", "rate", "share",
              "ratio", "peak memory");
}

void print_row(const BenchRow& row) {
  auto shown = [](double x, double scale = 1) { return x ? figure(x * scale) : std::string("-"); };
  std::printf("%-34s %-22s %10s %18s %7s %7s %11s", row.name.c_str(), row.shape.c_str(),
              figure(row.ms).c_str(), (shown(row.rate) + " " + row.unit).c_str(),
              row.share ? (figure(100 * row.share) + " %").c_str() : "-", shown(row.ratio).c_str(),
              row.peak ? human_bytes(double(row.peak)).c_str() : "-");
  for (const auto& [name, value] : row.notes) {
    std::printf("  %s %s", name.c_str(), figure(value).c_str());
  }
  std::printf("\n");
  std::fflush(stdout);
}

data::Json to_json(const char* suite, const BenchRow& row) {
  data::Json out = {{"bench", suite},   {"name", row.name}, {"shape", row.shape}, {"ms", row.ms},
                    {"rate", row.rate}, {"unit", row.unit}, {"share", row.share}};
  if (row.ratio) out["ratio"] = row.ratio;
  if (row.peak) out["peak_bytes"] = row.peak;
  for (const auto& [name, value] : row.notes) out[name] = value;
  return out;
}

}  // namespace brine::bench
