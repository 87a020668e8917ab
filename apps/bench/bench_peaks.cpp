// The machine's limits: arithmetic by type and memory, by one thread and by all.
#include <set>

#include "apps/bench/bench.h"
#include "apps/bench/parts/peaks.h"
#include "tensor/device/device.h"

namespace brine::bench {

void bench_peaks(RowSink& rows) {
  const int all = threads();
  // ratio: to the same by one thread.
  auto add = [&](const char* name, const char* unit, const std::function<double()>& rate) {
    double one = 0;
    for (int count : std::set<int>{1, all}) {
      set_threads(count);
      const double start = now_ms(), value = rate();
      if (count == 1) one = value;
      rows.add({name, join(count, count == 1 ? " thread" : " threads"), now_ms() - start, value,
                unit, value > 0 ? 1.0 : 0.0, one > 0 ? value / one : 0});
    }
    set_threads(all);
  };
  for (Peak peak : {Peak::f32, Peak::bf16, Peak::amx})
    add(name_of(peak), "GFLOP/s", [&] { return has_peak(peak) ? peak_rate(peak) : 0; });
  add("triad", "GB/s", triad_bandwidth);
}

}  // namespace brine::bench
