// One query of each head against the 4-bit copies of a block's keys: eight keys are the lanes,
// which are the strands of its sum of powers. The bits are those of a tile of rows (code_tile.h).
//
// After 8,192 tokens one thread of a Zen 5 chooses for a step of 3 heads in 43 microseconds (78 as
// a tile, of whose 16 lanes three heads fill three) and reads 240 KB for it: half of what the
// memory gives.
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

// The sums of the numbers of eight registers.
inline __m256i folded(const __m256i (&s)[8]) {
  const __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(s[0], s[1]), _mm256_hadd_epi32(s[2], s[3]));
  const __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(s[4], s[5]), _mm256_hadd_epi32(s[6], s[7]));
  return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                          _mm256_permute2x128_si256(a, b, 0x31));
}

inline __m256i bytes_at(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

}  // namespace code_row_parts

// Of each head h: y = (codes u_h - offsets[h]) steps of the B keys, largest[h] = max y, weights[h]
// = the sum of 2^((y - largest) head_steps[h]). codes [B, half], u [heads, 2 half]; y [B] is
// scratch.
inline void code_row(int64_t heads, int64_t B, int64_t half, const uint8_t* codes, const int8_t* u,
                     const float* steps, const float* offsets, const float* head_steps,
                     float* largest, float* weights, float* y) {
  using namespace code_row_parts;
  const __m256i nibble = _mm256_set1_epi8(15);
  for (int64_t h = 0; h < heads; ++h, u += 2 * half) {
    Eight top = Eight{} + std::numeric_limits<float>::lowest();
    for (int64_t j = 0; j < B; j += 8) {
      __m256i sums[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        __m256i sum = _mm256_setzero_si256();
        for (int64_t c = 0; c < half; c += 32) {
          const __m256i x = bytes_at(codes + (j + i) * half + c);
          sum = products(sum, _mm256_and_si256(x, nibble),
                         _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble), bytes_at(u + c),
                         bytes_at(u + half + c));
        }
        sums[i] = sum;
      }
      Eight a;
      std::memcpy(&a, steps + j, sizeof a);
      const Eight score = (Eight(_mm256_cvtepi32_ps(folded(sums))) - offsets[h]) * a;
      std::memcpy(y + j, &score, sizeof score);
      top = score > top ? score : top;
    }
    float most = top[0];
    for (int i = 1; i < 8; ++i) most = top[i] > most ? top[i] : most;
    Eight sum{};
    for (int64_t j = 0; j < B; j += 8) {
      Eight score;
      std::memcpy(&score, y + j, sizeof score);
      sum += exp2_of_lanes((score - most) * head_steps[h]);
    }
    largest[h] = most;
    weights[h] = sum_of_strands(sum);
  }
}
#endif

}  // namespace brine::BRINE_CPU
