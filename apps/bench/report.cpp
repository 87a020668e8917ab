// Rows of measurements as a table and as JSON.
#include "apps/bench/report.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "data/io/human.h"
#include "tensor/device/allocator.h"
#include "tensor/parallel.h"

namespace brine::bench {
namespace {

// "0.62", "12.3", "4567"
std::string figure(double x) {
  char text[32];
  const int digits = x != 0 && x < 10 ? 2 : (x < 100 ? 1 : 0);
  std::snprintf(text, sizeof text, "%.*f", digits, x);
  return text;
}

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

}  // namespace

data::Json to_json(const char* suite, const BenchRow& row) {
  data::Json out = {{"bench", suite},   {"name", row.name}, {"shape", row.shape}, {"ms", row.ms},
                    {"rate", row.rate}, {"unit", row.unit}, {"share", row.share}};
  if (row.ratio) out["ratio"] = row.ratio;
  if (row.peak) out["peak_bytes"] = row.peak;
  for (const auto& [name, value] : row.notes) out[name] = value;
  return out;
}

Report::Report(Form form) : form_(form), threads_(threads()), triad_(triad_bandwidth()) {
  if (form_ == Form::json) return;
  std::printf("%d threads, triad %.1f GB/s; medians; share: of the measured limit\n", threads_,
              triad_);
  print_title();
}

void Report::add(const Suite& suite, const std::vector<BenchRow>& rows) {
  for (const BenchRow& row : rows) {
    if (form_ == Form::table) print_row(row);
    rows_.emplace_back(&suite, row);
  }
}

data::Json Report::json() const {
  data::Json rows = data::Json::array();
  for (const auto& [suite, row] : rows_) rows.push_back(to_json(suite->name, row));
  return {{"quick", is_quick()},
          {"threads", threads_},
          {"triad_gb_per_s", triad_},
          {"device", join(default_device())},
          {"peak_reserved_bytes", allocator_stats().peak_reserved},
          {"rows", rows}};
}

}  // namespace brine::bench
