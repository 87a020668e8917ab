// Products of tiles of pairs of bf16 by registers of 16 sums (avx512_bf16).
#include "tensor/cpu/core/pair_tile.h"

#include "tensor/base/error.h"
#include "tensor/cpu/core/cpu_identity.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace brine::pair_tile {
namespace {

constexpr int64_t kLanes = 16;

#if defined(__x86_64__)
#define BRINE_PAIRS [[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]]

template <int R, int V>
BRINE_PAIRS void registers(int64_t pairs, Rows b, Lanes a, Sums c, Start start) {
  __m512 sum[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      sum[r][v] = _mm512_setzero_ps();
      if (start.add || start.factors) sum[r][v] = _mm512_loadu_ps(c.data + r * c.step + v * kLanes);
      if (start.factors) sum[r][v] *= _mm512_loadu_ps(start.factors + v * kLanes);
    }
  }
  for (int64_t p = 0; p < pairs; ++p) {
    __m512i x[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) x[v] = _mm512_loadu_si512(a.data + p * a.step + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const __m512i y = _mm512_set1_epi32(int(b.data[r * b.step + p]));
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        sum[r][v] = _mm512_dpbf16_ps(sum[r][v], __m512bh(x[v]), __m512bh(y));
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) _mm512_storeu_ps(c.data + r * c.step + v * kLanes, sum[r][v]);
  }
}

// All rows of V vectors of lanes: blocks of R, and of fewer at the end.
template <int R, int V>
void strip(int64_t rows, int64_t pairs, Rows b, Lanes a, Sums c, Start start) {
  int64_t r = 0;
  for (; r + R <= rows; r += R) {
    registers<R, V>(pairs, {b.data + r * b.step, b.step}, a, {c.data + r * c.step, c.step}, start);
  }
  if constexpr (R > 1) {
    if (r < rows) {
      strip<(R > 8   ? 8
             : R > 4 ? 4
                     : R / 2),
            V>(rows - r, pairs, {b.data + r * b.step, b.step}, a, {c.data + r * c.step, c.step},
               start);
    }
  }
}

void by_registers(int64_t rows, int64_t lanes, int64_t pairs, Rows b, Lanes a, Sums c,
                  Start start) {
  int64_t l = 0;
  auto strips = [&]<int R, int V>() {
    for (; l + V * kLanes <= lanes; l += V * kLanes) {
      strip<R, V>(rows, pairs, b, {a.data + l, a.step}, {c.data + l, c.step},
                  {start.add, start.factors ? start.factors + l : nullptr});
    }
  };
  strips.template operator()<6, 4>();
  strips.template operator()<12, 2>();
  strips.template operator()<12, 1>();
}
#endif

}  // namespace

bool is_available() { return this_cpu_identity().avx512_bf16; }

void product(int64_t rows, int64_t lanes, int64_t pairs, Rows b, Lanes a, Sums c, Start start) {
  check(lanes % kLanes == 0 && is_available(), "pair_tile: ", lanes,
        " lanes must be a multiple of ", kLanes, ", on a CPU with avx512_bf16");
#if defined(__x86_64__)
  by_registers(rows, lanes, pairs, b, a, c, start);
#endif
}

}  // namespace brine::pair_tile
