// Vectors of numbers in the computing type, loaded from numbers stored in another type.
#pragma once

#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "tensor/base/dtype.h"
#include "tensor/cpu/core/vectors.h"

namespace brine::BRINE_CPU {

template <class T>
inline Vector<T> load_as(const T* p) {
  return load(p);
}

// As many numbers as a vector of T has, at any address.
template <class T>
inline Vector<T> load_as(const bf16* p) {
#ifdef __AVX512F__
  // GCC 12 converts its own vectors in two halves. The unmasked form triggers warnings.
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m512i words = _mm512_maskz_cvtepu16_epi32(__mmask16(-1), x);
  return std::bit_cast<Vector<T>>(_mm512_maskz_slli_epi32(__mmask16(-1), words, 16));
#else
  typedef uint16_t Halves __attribute__((vector_size(kVectorBytes / 2)));
  typedef uint32_t Words __attribute__((vector_size(kVectorBytes)));
  Halves x;
  std::memcpy(&x, p, sizeof(x));
  return std::bit_cast<Vector<T>>(__builtin_convertvector(x, Words) << 16);
#endif
}
template <class T>
inline Vector<T> load_as(const f16* p) {
#ifdef __AVX512F__
  // The unmasked form triggers warnings in a header of GCC 12.
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_maskz_cvtph_ps(__mmask16(-1), x);
#elif defined(__F16C__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__aarch64__)
  // GCC 12 converts its own vectors of halves lane by lane.
  return std::bit_cast<Vector<T>>(vcvt_f32_f16(vld1_f16(reinterpret_cast<const float16_t*>(p))));
#else
  Vector<T> x;
  for (int i = 0; i < kWidth<T>; ++i) x[i] = float(p[i]);
  return x;
#endif
}

}  // namespace brine::BRINE_CPU
