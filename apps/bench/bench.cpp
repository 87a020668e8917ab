// Timing and the triad.
#include "apps/bench/bench.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "tensor/parallel.h"
#include "tensor/tensor.h"

namespace brine::bench {

double now_ms() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double, std::milli>(Clock::now().time_since_epoch()).count();
}

double median_time(const std::function<void()>& f, double seconds) {
  f();
  std::vector<double> times;
  double total = 0;
  while (times.size() < 5 || (total < seconds * 1e3 && times.size() < 1000)) {
    const double start = now_ms();
    f();
    times.push_back(now_ms() - start);
    total += times.back();
  }
  std::nth_element(times.begin(), times.begin() + long(times.size() / 2), times.end());
  return times[times.size() / 2];
}

std::pair<double, double> median_times(const std::function<void()>& f,
                                       const std::function<void()>& g, double seconds) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times[2];
  double total = 0;
  for (int turn = -2; times[1].size() < 5 || (total < seconds * 1e3 && turn < 2000); ++turn) {
    const auto start = Clock::now();
    (turn & 1 ? g : f)();
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    if (turn < 0) continue;
    times[turn & 1].push_back(ms);
    total += ms;
  }
  for (auto& t : times) std::nth_element(t.begin(), t.begin() + long(t.size() / 2), t.end());
  return {times[0][times[0].size() / 2], times[1][times[1].size() / 2]};
}

double triad_bandwidth() {
  static std::map<int, double> measured;
  double& known = measured[threads()];
  if (known > 0) return known;
  const int64_t n = 16 << 20;
  Tensor a = Tensor::zeros({n}), b = Tensor::full({n}, 1), c = Tensor::full({n}, 2);
  float* pa = a.data<float>();
  const float* pb = b.data<float>();
  const float* pc = c.data<float>();
  const double ms = median_time([=] {
    parallel_for(n, 1 << 16, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) pa[i] = pb[i] + 3.0f * pc[i];
    });
  });
  return known = 3.0 * 4 * double(n) / ms / 1e6;
}

BenchRow memory_row(const std::string& name, const std::string& shape, double bytes,
                    const std::function<void()>& f) {
  const double ms = median_time(f), rate = bytes / ms / 1e6;
  return {name, shape, ms, rate, "GB/s", rate / triad_bandwidth()};
}

}  // namespace brine::bench
