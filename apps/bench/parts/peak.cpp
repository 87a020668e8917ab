// The peak of f32: multiply-adds in registers, without memory.
#include <algorithm>

#include "apps/bench/bench.h"

namespace brine::bench {
namespace {

#ifdef __AVX512F__
constexpr int kBytes = 64;
#elif defined(__aarch64__)
constexpr int kBytes = 16;
#else
constexpr int kBytes = 32;
#endif
// Keeps a vector in its register, so that identical chains stay twelve.
#ifdef __x86_64__
#define BRINE_KEEP(v) asm volatile("" : "+v"(v))
#else
#define BRINE_KEEP(v) asm volatile("" : "+w"(v))
#endif
constexpr int kSums = 12;  // independent chains: more than latency times rate

void f32_chains(int64_t steps) {
  typedef float V __attribute__((vector_size(kBytes)));
  volatile float one = 1, tiny = 1e-9f;
  V x = V{} + one, y = V{} + tiny, sums[kSums];
#pragma GCC unroll 12
  for (int s = 0; s < kSums; ++s) sums[s] = V{} + tiny * float(s);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (int s = 0; s < kSums; ++s) {
      sums[s] = sums[s] * x + y;
      BRINE_KEEP(sums[s]);
    }
  }
#pragma GCC unroll 12
  for (int s = 1; s < kSums; ++s) sums[0] += sums[s];
  volatile V keep = sums[0];
  (void)keep;
}

}  // namespace

double peak_flops() {
  const int64_t steps = sized(200000, 20000);
  const double operations = 2.0 * kSums * kBytes / 4 * double(steps);
  double sum = 0;
#pragma omp parallel reduction(+ : sum)
  {
    double best = 0;
    for (int run = 0; run < 20; ++run) {
      const double start = now_ms();
      f32_chains(steps);
      best = std::max(best, operations / (now_ms() - start) / 1e6);
    }
    sum += best;
  }
  return sum;
}

}  // namespace brine::bench
