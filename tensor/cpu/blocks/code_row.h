// One query of each head against the 4-bit copies of a block's keys: eight keys are the lanes,
// which are the strands of its sum of powers. The bits are those of a tile of rows (code_tile.h).
//
// A key's copy is unpacked once for three heads, whose sums of four keys fill twelve of 16
// registers. After 8,192 tokens one thread of a Zen 3 chooses for a step of 3 heads in 100
// microseconds (115 when each head unpacked) and reads 240 KB for it, a fifth of what the memory
// gives: products and powers limit it.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "tensor/cpu/blocks/lanes.h"
#include "tensor/mask/blocks.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace brine::BRINE_CPU {

// Whether code_row() takes blocks of B keys whose copies have `half` bytes.
inline bool takes_code_row([[maybe_unused]] int64_t B, [[maybe_unused]] int64_t half) {
#ifdef __AVX2__
  return kStrands == 8 && B % 8 == 0 && half % 32 == 0;
#else
  return false;
#endif
}

#ifdef __AVX2__
typedef float Eight __attribute__((vector_size(32)));

namespace code_row_parts {

// s + the sums of four products of bytes each, exact: 2 x 2 x 15 x 127 is below 2^15.
inline __m256i products(__m256i s, __m256i low, __m256i high, __m256i u, __m256i v) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  return _mm256_dpbusd_epi32(_mm256_dpbusd_epi32(s, low, u), high, v);
#elif defined(__AVXVNNI__)
  return _mm256_dpbusd_avx_epi32(_mm256_dpbusd_avx_epi32(s, low, u), high, v);
#else
  const __m256i pairs =
      _mm256_add_epi16(_mm256_maddubs_epi16(low, u), _mm256_maddubs_epi16(high, v));
  return _mm256_add_epi32(s, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
}

// The sums of the numbers of four registers.
inline __m128i folded(const __m256i (&s)[4]) {
  const __m256i x = _mm256_hadd_epi32(_mm256_hadd_epi32(s[0], s[1]), _mm256_hadd_epi32(s[2], s[3]));
  return _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}

inline __m256i bytes_at(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

// code_row() of H heads, whose keys are unpacked once.
template <int H>
[[gnu::always_inline]] inline void code_heads(int64_t B, int64_t half, const uint8_t* codes,
                                              const int8_t* u, const float* steps,
                                              const float* offsets, const float* head_steps,
                                              float* largest, float* weights, float* y) {
  const __m256i nibble = _mm256_set1_epi8(15);
  Eight top[H];
  for (int h = 0; h < H; ++h) top[h] = Eight{} + std::numeric_limits<float>::lowest();
  for (int64_t j = 0; j < B; j += 8) {
    __m128i fours[H][2];
    for (int part = 0; part < 2; ++part) {
      const uint8_t* rows = codes + (j + 4 * part) * half;
      __m256i sums[H][4] = {};
      for (int64_t c = 0; c < half; c += 32) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          const __m256i x = bytes_at(rows + i * half + c), low = _mm256_and_si256(x, nibble);
          const __m256i high = _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble);
#pragma GCC unroll 3
          for (int h = 0; h < H; ++h) {
            const int8_t* of = u + 2 * h * half + c;
            sums[h][i] = products(sums[h][i], low, high, bytes_at(of), bytes_at(of + half));
          }
        }
      }
#pragma GCC unroll 3
      for (int h = 0; h < H; ++h) fours[h][part] = folded(sums[h]);
    }
    Eight a;
    std::memcpy(&a, steps + j, sizeof a);
    for (int h = 0; h < H; ++h) {
      const __m256i eight = _mm256_set_m128i(fours[h][1], fours[h][0]);
      const Eight score = (Eight(_mm256_cvtepi32_ps(eight)) - offsets[h]) * a;
      std::memcpy(y + h * B + j, &score, sizeof score);
      top[h] = score > top[h] ? score : top[h];
    }
  }
  for (int h = 0; h < H; ++h) {
    float maximum = top[h][0];
    for (int i = 1; i < 8; ++i) maximum = top[h][i] > maximum ? top[h][i] : maximum;
    Eight sum{};
    for (int64_t j = 0; j < B; j += 8) {
      Eight score;
      std::memcpy(&score, y + h * B + j, sizeof score);
      sum += exp2_of_lanes((score - maximum) * head_steps[h]);
    }
    largest[h] = maximum;
    weights[h] = sum_of_strands(sum);
  }
}

}  // namespace code_row_parts

// Of each head h: y = (codes u_h - offsets[h]) steps of the B keys, largest[h] = max y, weights[h]
// = the sum of 2^((y - largest) head_steps[h]). codes [B, half], u [heads, 2 half]; y [3, B] is
// scratch.
inline void code_row(int64_t heads, int64_t B, int64_t half, const uint8_t* codes, const int8_t* u,
                     const float* steps, const float* offsets, const float* head_steps,
                     float* largest, float* weights, float* y) {
  auto add = [&]<int H>(int64_t h) {
    auto run = [&](int64_t bytes) {
      code_row_parts::code_heads<H>(B, bytes, codes, u + 2 * h * half, steps, offsets + h,
                                    head_steps + h, largest + h, weights + h, y);
    };
    half == 32 ? run(32) : run(half);
  };
  int64_t h = 0;
  for (; heads - h == 3 || heads - h > 4; h += 3) add.template operator()<3>(h);
  for (; heads - h >= 2; h += 2) add.template operator()<2>(h);
  if (h < heads) add.template operator()<1>(h);
}

// out[n lanes + h] = the sum over the channels c, ascending, of rows[n][c] q[c lanes + h], as a
// tile computes it. Returns how many rows it computed, from the first on; the rest is left to a
// tile. At most four heads fill half a vector of eight lanes, so that two rows share one; other
// vectors have no such half.
template <class T>
int64_t row_products(int64_t heads, int64_t n, int64_t depth, const T* rows, int64_t step,
                     const T* q, int64_t lanes, T* out) {
  constexpr int kPairs = 6;
  int64_t row = 0;
  if constexpr (sizeof(T) == 4) {
    if (heads > 4 || lanes != 8 || depth % 4 != 0) return 0;
    for (; row + 2 * kPairs <= n; row += 2 * kPairs) {
      __m256 sums[kPairs] = {};
      const float* from = rows + row * step;
      for (int64_t c = 0; c < depth; c += 4, from += 4) {
        __m256 x[kPairs];
#pragma GCC unroll 6
        for (int p = 0; p < kPairs; ++p) {
          x[p] = _mm256_set_m128(_mm_loadu_ps(from + (2 * p + 1) * step),
                                 _mm_loadu_ps(from + 2 * p * step));
        }
        auto add = [&]<int i>() {
          const auto* at = reinterpret_cast<const __m128*>(q + (c + i) * lanes);
          const __m256 of = _mm256_broadcast_ps(at);
#pragma GCC unroll 6
          for (int p = 0; p < kPairs; ++p) sums[p] += of * _mm256_permute_ps(x[p], 0x55 * i);
        };
        add.template operator()<0>();
        add.template operator()<1>();
        add.template operator()<2>();
        add.template operator()<3>();
      }
      for (int p = 0; p < kPairs; ++p) {
        const __m128 zero = _mm_setzero_ps(), even = _mm256_castps256_ps128(sums[p]);
        float* to = out + (row + 2 * p) * lanes;
        _mm256_storeu_ps(to, _mm256_set_m128(zero, even));
        _mm256_storeu_ps(to + lanes, _mm256_set_m128(zero, _mm256_extractf128_ps(sums[p], 1)));
      }
    }
  }
  return row;
}
#else
template <class... Any>
int64_t row_products(const Any&...) {
  return 0;
}
#endif

}  // namespace brine::BRINE_CPU
