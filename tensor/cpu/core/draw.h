// Philox for many blocks at once: the same words as philox(), faster.
#pragma once

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "tensor/base/random.h"
#include "tensor/kernels/kernel.h"

namespace brine::BRINE_CPU {

constexpr int64_t kDrawBlocks = 64;
constexpr int64_t kDrawWords = 4 * kDrawBlocks;

// words[4 b + w] = philox(seed, stream, first + b).v[w] for b < kDrawBlocks.
inline void draw(uint64_t seed, uint64_t stream, uint64_t first, uint32_t* words) {
#ifdef __AVX2__
  // A 64-bit lane contains one word of a block in its lower half; the upper half that products
  // leave is never read, neither by the next product nor at the end. The compiler's code for
  // philox() spends most of its time on moving words between lanes. Groups of four blocks are
  // interleaved, since each is a long chain of dependent steps.
  constexpr int kGroups = 2;
  const __m256i times0 = _mm256_set1_epi64x(0xD2511F53), times2 = _mm256_set1_epi64x(0xCD9E8D57);
  const __m256i step0 = _mm256_set1_epi64x(0x9E3779B9), step1 = _mm256_set1_epi64x(0xBB67AE85);
  const __m256i low = _mm256_set1_epi64x(0xffffffff), lanes = _mm256_set_epi64x(3, 2, 1, 0);
  for (int64_t b = 0; b < kDrawBlocks; b += 4 * kGroups) {
    __m256i c0[kGroups], c1[kGroups], c2[kGroups], c3[kGroups];
    for (int g = 0; g < kGroups; ++g) {
      c0[g] = _mm256_add_epi64(_mm256_set1_epi64x(int64_t(first) + b + 4 * g), lanes);
      c1[g] = _mm256_srli_epi64(c0[g], 32);
      c2[g] = _mm256_set1_epi64x(int64_t(stream));
      c3[g] = _mm256_srli_epi64(c2[g], 32);
    }
    __m256i k0 = _mm256_set1_epi64x(uint32_t(seed)), k1 = _mm256_set1_epi64x(int64_t(seed >> 32));
    for (int round = 0; round < 10; ++round) {
      for (int g = 0; g < kGroups; ++g) {
        const __m256i p0 = _mm256_mul_epu32(c0[g], times0), p1 = _mm256_mul_epu32(c2[g], times2);
        c0[g] = _mm256_xor_si256(_mm256_srli_epi64(p1, 32), _mm256_xor_si256(c1[g], k0));
        c2[g] = _mm256_xor_si256(_mm256_srli_epi64(p0, 32), _mm256_xor_si256(c3[g], k1));
        c1[g] = p1;
        c3[g] = p0;
      }
      k0 = _mm256_add_epi32(k0, step0);
      k1 = _mm256_add_epi32(k1, step1);
    }
    for (int g = 0; g < kGroups; ++g) {
      const __m256i c01 =
          _mm256_or_si256(_mm256_and_si256(c0[g], low), _mm256_slli_epi64(c1[g], 32));
      const __m256i c23 =
          _mm256_or_si256(_mm256_and_si256(c2[g], low), _mm256_slli_epi64(c3[g], 32));
      const __m256i even = _mm256_unpacklo_epi64(c01, c23), odd = _mm256_unpackhi_epi64(c01, c23);
      auto* out = reinterpret_cast<__m256i*>(words + 4 * b + 16 * g);
      _mm256_storeu_si256(out, _mm256_permute2x128_si256(even, odd, 0x20));
      _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(even, odd, 0x31));
    }
  }
#else
  for (int64_t b = 0; b < kDrawBlocks; ++b) {
    const Philox p = philox(seed, stream, first + uint64_t(b));
    for (int w = 0; w < 4; ++w) words[4 * b + w] = p.v[w];
  }
#endif
}

}  // namespace brine::BRINE_CPU
