// Bursts of multiply-adds by type; those of types that the build need not have are compiled for
// their instructions alone and run after a check of the CPU.
#include "apps/bench/parts/peaks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "apps/bench/bench.h"
#include "tensor/cpu/core/cpu_identity.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

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

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bf16"))) void bf16_chains(int64_t steps) {
  __m512 sums[kSums];
#pragma GCC unroll 12
  for (int s = 0; s < kSums; ++s) sums[s] = _mm512_set1_ps(float(s));
  const __m512i ones = _mm512_set1_epi16(0x3f80);
  __m512bh x;
  std::memcpy(&x, &ones, sizeof x);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (int s = 0; s < kSums; ++s) {
      sums[s] = _mm512_dpbf16_ps(sums[s], x, x);
      BRINE_KEEP(sums[s]);
    }
  }
#pragma GCC unroll 12
  for (int s = 1; s < kSums; ++s) sums[0] = _mm512_add_ps(sums[0], sums[s]);
  volatile float keep = _mm512_cvtss_f32(sums[0]);
  (void)keep;
}

constexpr int kTileRows = 16, kTileBytes = 64, kTileSums = 6;

// Tiles 0 to 5 are sums [16, 16] f32; 6 and 7 are factors [16, 32] bf16.
__attribute__((target("amx-tile,amx-bf16"))) void amx_chains(int64_t steps) {
  struct alignas(64) Configuration {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  } configuration;
  static_assert(sizeof configuration == 64);
  for (int t = 0; t < kTileSums + 2; ++t) {
    configuration.bytes[t] = kTileBytes;
    configuration.rows[t] = kTileRows;
  }
  // Not _tile_loadconfig(): GCC 12 declares that it reads 8 bytes, and drops the other stores.
  asm volatile("ldtilecfg %0" ::"m"(configuration));
  alignas(64) uint16_t ones[kTileRows * kTileBytes / 2];
  std::fill(std::begin(ones), std::end(ones), uint16_t(0x3f80));
  asm volatile("" ::: "memory");  // the intrinsics do not say that they read memory
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_loadd(6, ones, kTileBytes);
  _tile_loadd(7, ones, kTileBytes);
  for (int64_t i = 0; i < steps; ++i) {
    _tile_dpbf16ps(0, 6, 7);
    _tile_dpbf16ps(1, 6, 7);
    _tile_dpbf16ps(2, 6, 7);
    _tile_dpbf16ps(3, 6, 7);
    _tile_dpbf16ps(4, 6, 7);
    _tile_dpbf16ps(5, 6, 7);
  }
  alignas(64) float sums[kTileRows * kTileBytes / 4];
  _tile_stored(0, sums, kTileBytes);
  _tile_release();
  volatile float keep = sums[0];
  (void)keep;
}
#endif

struct Chains {
  void (*run)(int64_t steps) = nullptr;
  int64_t steps = 0;  // of a burst
  double operations_a_step = 0;
};

Chains chains_of([[maybe_unused]] Peak peak) {
  const int64_t steps = sized(200000, 20000);
#if defined(__x86_64__)
  if (peak == Peak::bf16) return {bf16_chains, steps, 2.0 * kSums * 32};
  if (peak == Peak::amx)
    return {amx_chains, steps / 20, 2.0 * kTileSums * kTileRows * 16 * (kTileBytes / 2)};
#endif
  return {f32_chains, steps, 2.0 * kSums * kBytes / 4};
}

}  // namespace

const char* name_of(Peak peak) {
  switch (peak) {
    case Peak::f32:
      return "f32 multiply-add";
    case Peak::bf16:
      return "bf16 dot product (avx512_bf16)";
    case Peak::amx:
      return "bf16 tiles (amx_bf16)";
  }
  return "";
}

bool has_peak(Peak peak) {
  if (peak == Peak::f32) return true;
  return peak == Peak::bf16 ? this_cpu_identity().avx512_bf16 : has_tiles();
}

Peak best_bf16_peak() {
  for (Peak peak : {Peak::amx, Peak::bf16}) {
    if (has_peak(peak)) return peak;
  }
  return Peak::f32;
}

double burst(Peak peak) {
  const Chains chains = chains_of(peak);
  chains.run(chains.steps);
  return chains.operations_a_step * double(chains.steps);
}

double peak_rate(Peak peak) {
  double sum = 0;
#pragma omp parallel reduction(+ : sum)
  {
    double best = 0;
    for (int run = 0; run < 20; ++run) {
      const double start = now_ms(), operations = burst(peak);
      best = std::max(best, operations / (now_ms() - start) / 1e6);
    }
    sum += best;
  }
  return sum;
}

double peak_flops() { return peak_rate(Peak::f32); }

}  // namespace brine::bench
