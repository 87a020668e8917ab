// The attention block, q, k, v to context, of every causal method: how its cost grows with T.
#include "apps/bench/bench.h"
#include "apps/bench/block.h"
#include "apps/terminal.h"
#include "tensor/allocator.h"

namespace brine::bench {
namespace {

// A T x T method stops where its maps would take more than this.
constexpr double kMostMapBytes = 6e9;

BenchRow measure(const Block& block, const Inputs& in, int64_t T, bool train) {
  auto run = [&] {
    if (train) {
      backward(block.attention->forward(in.input()), in.dy);
    } else {
      NoGrad off;
      block.attention->forward(in.input());
    }
  };
  run();
  const int64_t before = allocator_stats().live;
  reset_peak();
  const double ms = median_time(run, 0.5);
  const int64_t peak = allocator_stats().peak_live;
  return {.name = block.name + (train ? ", forward + backward" : ", forward"),
          .shape = join("[1, ", kHeads, ", ", T, ", ", kHeadSize, "]"),
          .ms = ms,
          .rate = double(T) / ms * 1e3,
          .unit = "tokens/s",
          .peak = peak,
          .notes = {{"us_per_token", ms * 1e3 / double(T)},
                    {"block_bytes_per_token", double(peak - before) / double(T)}}};
}

void bench_block(const Block& block, std::vector<BenchRow>& rows) {
  double first[2] = {0, 0};
  for (int64_t T : token_counts()) {
    const double maps = 4.0 * 3 * double(kHeads) * double(T) * double(T);
    if (!block.attention->traits().linear && maps > kMostMapBytes) {
      log_info(block.name, ": left out at T = ", T, ", its maps would take ", human_bytes(maps));
      continue;
    }
    const Inputs in(T);
    for (bool train : {false, true}) {
      BenchRow row = measure(block, in, T, train);
      const double each = row.ms / double(T);
      if (first[train] == 0) first[train] = each;
      row.ratio = each / first[train];
      rows.push_back(row);
    }
    trim();
  }
}

}  // namespace

std::vector<BenchRow> bench_attention() {
  std::vector<BenchRow> rows;
  for (const Block& block : every_block(token_counts().back())) bench_block(block, rows);
  return rows;
}

}  // namespace brine::bench
