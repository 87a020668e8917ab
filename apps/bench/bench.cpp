// Timing, and the triad that measures bandwidth.
#include "apps/bench/bench.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "tensor/base/parallel.h"
#include "tensor/base/random.h"
#include "tensor/device/accelerator.h"
#include "tensor/device/allocator.h"
#include "tensor/tensor.h"

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
  f();
  std::vector<double> times;
  double total = 0;
  while (wants_more(times.size(), total, seconds)) {
    finish();
    const double start = now_ms();
    f();
    finish();
    times.push_back(now_ms() - start);
    total += times.back();
  }
  return median(times);
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

namespace {

// a[i] = b[i] + s c[i] on arrays beyond the caches.
class Triad {
 public:
  Triad() {
    for (Tensor* t : {&a_, &b_, &c_}) *t = Tensor::full({length_}, 1);
  }
  void operator()() {
    float* a = a_.data<float>();
    const float* b = b_.data<float>();
    const float* c = c_.data<float>();
    parallel_for(length_, 1 << 16, [=](int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) a[i] = b[i] + 3.0f * c[i];
    });
  }
  double bandwidth(double ms) const { return 3.0 * 4 * double(length_) / ms / 1e6; }

 private:
  int64_t length_ = sized(16 << 20, 1 << 16);
  Tensor a_, b_, c_;
};

}  // namespace

double triad_bandwidth() {
  Triad triad;
  return triad.bandwidth(median_time([&] { triad(); }));
}

double read_bandwidth(int64_t bytes) {
  typedef float Line __attribute__((vector_size(64)));  // one of the cache
  constexpr int64_t kFloats = 16, kLines = 8;           // as many sums as keep the loads busy
  const int64_t count = threads(), n = bytes / 4 / (kFloats * kLines) * (kFloats * kLines);
  check(n > 0, "bench: ", bytes, " bytes are too few to read");
  const Tensor arrays = Tensor::full({count, n}, 1);
  std::vector<float> sums(size_t(count), 0);
  auto read = [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const float *x = arrays.data<float>() + i * n, *end = x + n;
      Line sum[kLines] = {};
      for (; x < end; x += kFloats * kLines) {
#pragma GCC unroll 8
        for (int64_t j = 0; j < kLines; ++j) {
          Line line;
          std::memcpy(&line, x + j * kFloats, sizeof line);
          sum[j] += line;
        }
      }
      for (const Line& line : sum) sums[size_t(i)] += line[0];
    }
  };
  const double ms = median_time([&] { parallel_for(count, 1, read); }, 0.2);
  check(sums[0] > 0, "bench: nothing was read");
  return double(count * n) * 4 / ms / 1e6;
}

}  // namespace brine::bench
