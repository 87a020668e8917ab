// The paper's table of latency and memory: one bidirectional head, d = 128, K = 128, k = 32, 64 and
// 128, inputs of 4,096 to 131,072 tokens; every method without maps, and dense attention as long as
// its maps fit. In addition the causal form of the methods with a mask, at k = 64.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/bench/bench.h"
#include "apps/bench/parts/block.h"
#include "apps/cli/terminal.h"
#include "tensor/device/allocator.h"

namespace brine::bench {
namespace {

constexpr int64_t kSize = 128, kWide = 128;

std::string latency_name(const Block& block, int64_t k, bool causal) {
  const bool sparse = block.attention->traits().sparse;
  return join(block.name, sparse ? join(", k = ", k) : "", causal ? ", causal" : "");
}
std::string latency_shape(int64_t T) { return join("[1, 1, ", T, ", ", kSize, "]"); }

BenchRow measure(const Block& block, int64_t k, int64_t T, bool causal) {
  const Inputs in(T, 1, kSize);
  const bool sparse = block.attention->traits().sparse;
  nn::AttentionInput input = in.input();
  input.visible.causal = causal;
  input.options.k = sparse ? k : 0;
  NoGrad off;
  auto run = [&] { block.attention->forward(input); };
  run();
  const int64_t before = allocator_stats().live;
  reset_peak();
  const double ms = median_time(run, 0.5);
  return {.name = latency_name(block, k, causal),
          .shape = latency_shape(T),
          .ms = ms,
          .rate = double(T) / ms * 1e3,
          .unit = "tokens/s",
          .peak = allocator_stats().peak_live - before,
          .notes = {{"tokens", double(T)}}};
}

// Every length, k and direction of one method.
void bench_method(const Block& block, const Block& causal, const std::vector<int64_t>& lengths,
                  RowSink& rows) {
  if (!block.attention) return;
  const bool sparse = block.attention->traits().sparse;
  MapMemory memory(*block.attention, 1);
  for (int64_t T : lengths) {
    if (!memory.fits(T)) {
      log_info(block.name, ": left out from T = ", T, ", its maps do not fit");
      break;
    }
    auto attempt = [&](const Block& own, int64_t k, bool is_causal) {
      rows.attempt(latency_name(own, k, is_causal), latency_shape(T), [&] {
        const BenchRow row = measure(own, k, T, is_causal);
        rows.add(row);
        if (!is_causal) memory.took(T, row.peak);
      });
    };
    for (int64_t k : {32, 64, 128}) {
      attempt(block, k, false);
      if (!sparse) break;
    }
    if (sparse && causal.attention) attempt(causal, 64, true);
    trim();
  }
}

}  // namespace

void bench_paper_latency(RowSink& rows, const std::vector<int64_t>& tokens,
                         const std::vector<std::string>& methods) {
  std::vector<int64_t> lengths = tokens;
  if (lengths.empty()) lengths = {4096, 8192, 16384, 32768, 65536, 131072};
  if (tokens.empty() && is_quick()) lengths = {128};
  std::sort(lengths.begin(), lengths.end());
  auto block_of = [&](const std::string& method, bool causal) {
    return make_block(
        method, {{"columns", kWide}, {"decoder", "paper"}, {"mode", "per-query"}},
        {.heads = 1, .head_size = kSize, .max_positions = lengths.back(), .causal = causal},
        has_presets(method) ? "paper" : "");
  };
  for (const auto& [method, factory] : nn::attention_methods()) {
    if (!methods.empty() && !std::ranges::count(methods, method)) continue;
    rows.attempt(method, "", [&] {
      bench_method(block_of(method, false), block_of(method, true), lengths, rows);
    });
  }
}

}  // namespace brine::bench
