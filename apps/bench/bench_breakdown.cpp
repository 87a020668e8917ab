// The time and the memory of an attention block, by component.
#include <map>

#include "apps/bench/suites.h"
#include "tensor/device/allocator.h"
#include "tensor/meter/cost_meter.h"

namespace brine::bench {
namespace {

// One forward and backward pass with the meter on.
std::map<std::string, Cost> metered(const Block& block, const Inputs& in) {
  CostMeter meter;
  Tensor y = block.attention->forward(in.input());
  backward(y, in.dy);
  CostScope settle("rest");  // records the open scope
  return meter.costs();
}

void bench_block(const Block& block, int64_t T, RowSink& rows) {
  const Inputs in(T);
  if (!is_quick()) metered(block, in);
  std::map<std::string, std::vector<double>> times;
  std::map<std::string, Cost> costs;
  const int runs = is_quick() ? 1 : 7;
  for (int run = 0; run < runs; ++run) {
    costs = metered(block, in);
    for (const auto& [component, cost] : costs) times[component].push_back(cost.ms);
  }
  double total = 0;
  for (auto& [component, ms] : times) total += median(ms);
  for (const auto& [component, cost] : costs) {
    const double ms = median(times[component]);
    if (component == "rest") continue;
    rows.add({.name = block.name + ": " + component,
              .shape = block_shape({}, T),
              .ms = ms,
              .rate = cost.macs > 0 && ms > 0 ? 2e-6 * cost.macs / ms : 0,
              .unit = "GFLOP/s",
              .peak = cost.peak,
              .notes = {{"tokens", double(T)},
                        {"share_of_time", ms / total},
                        {"us_per_token", 1e3 * ms / double(T)},
                        {"megabytes_per_token", 1e-6 * cost.bytes / double(T)}}});
  }
  trim();
}

}  // namespace

void bench_breakdown(const BenchRequest& r, RowSink& rows) {
  const std::vector<int64_t> counts = r.tokens.empty() ? std::vector{sized(4096, 96)} : r.tokens;
  for (int64_t T : counts) {
    each_block(rows, T, r.methods, {}, [&](const Block& block) {
      rows.attempt(block.name, block_shape({}, T), [&] { bench_block(block, T, rows); });
    });
  }
}

}  // namespace brine::bench
