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

namespace {

// a[i] = b[i] + s c[i] on arrays beyond the caches.
class Triad {
 public:
  Triad() {
    for (Tensor* t : {&a_, &b_, &c_}) *t = Tensor::full({kLength}, 1);
  }
  void operator()() {
    float* a = a_.data<float>();
    const float* b = b_.data<float>();
    const float* c = c_.data<float>();
    parallel_for(kLength, 1 << 16, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) a[i] = b[i] + 3.0f * c[i];
    });
  }
  static double bandwidth(double ms) { return 3.0 * 4 * double(kLength) / ms / 1e6; }

 private:
  static constexpr int64_t kLength = 16 << 20;
  Tensor a_, b_, c_;
};

}  // namespace

double triad_bandwidth() {
  Triad triad;
  return Triad::bandwidth(median_time([&] { triad(); }));
}

BenchRow memory_row(const std::string& name, const std::string& shape, double bytes,
                    const std::function<void()>& f) {
  static Triad triad;
  auto [ms, triad_ms] = median_times(f, [] { triad(); });
  const double rate = bytes / ms / 1e6;
  return {name, shape, ms, rate, "GB/s", rate / Triad::bandwidth(triad_ms)};
}

}  // namespace brine::bench
