// Timing.
#include "apps/bench/bench.h"

#include <algorithm>
#include <chrono>

#include "tensor/base/parallel.h"
#include "tensor/base/random.h"
#include "tensor/device/accelerator.h"
#include "tensor/device/allocator.h"

namespace brine::bench {
namespace {

bool quick = false;

// Whether a median needs another run.
bool wants_more(size_t runs, double total_ms, double seconds) {
  constexpr double kPatienceMs = 15000;
  if (quick || (runs > 0 && total_ms > kPatienceMs)) return runs == 0;
  return runs < 5 || (total_ms < seconds * 1e3 && runs < 1000);
}

}  // namespace

void RowSink::attempt(const std::string& name, const std::string& shape,
                      const std::function<void()>& measure) {
  try {
    measure();
    return;
  } catch (const DeviceLost&) {
    throw;
  } catch (const std::exception& e) {
    fail({name, shape, e.what()});
  }
  try {
    settle();
  } catch (const std::exception& e) {
    throw DeviceLost(join("the rest is left out, since the device no longer answers: ", e.what()));
  }
  trim();
}

void RowSink::settle() const { finish(); }

void set_quick(bool on) { quick = on; }
bool is_quick() { return quick; }

std::vector<int64_t> token_counts() {
  if (quick) return {96, 192};
  std::vector<int64_t> counts = {2048, 4096, 8192, 16384};
  if (default_device().is_cuda()) counts.insert(counts.end(), {32768, 65536, 131072});
  return counts;
}

void finish() {
  if (default_device().is_cuda()) cuda::synchronize(default_device());
}

Tensor noise(const Shape& shape, uint64_t seed) {
  Tensor x = Tensor::empty(shape);
  const RandomSlice slice{seed, 0, 0};
  float* values = x.data<float>();
  parallel_for(x.numel(), 1 << 12, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) values[i] = float(slice.normal(uint64_t(i)));
  });
  return x.to(default_device());
}

double now_ms() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double, std::milli>(Clock::now().time_since_epoch()).count();
}

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + long(x.size() / 2), x.end());
  return x[x.size() / 2];
}

double median_time(const std::function<void()>& f, double seconds) {
  return median_times(
             f, [] {}, seconds)
      .first;
}

std::pair<double, double> median_times(const std::function<void()>& f,
                                       const std::function<void()>& g, double seconds) {
  const std::function<void()>* functions[] = {&f, &g};
  std::vector<double> times[2];
  double total = 0;
  for (int round = -1; wants_more(times[1].size(), total, seconds); ++round) {
    for (size_t i = 0; i < 2; ++i) {
      finish();
      const double start = now_ms();
      (*functions[i])();
      finish();
      const double ms = now_ms() - start;
      if (round < 0) continue;
      times[i].push_back(ms);
      total += ms;
    }
  }
  return {median(times[0]), median(times[1])};
}

}  // namespace brine::bench
