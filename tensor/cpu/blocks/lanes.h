// Small operations on vectors of lanes that the choice of blocks shares.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "tensor/base/math.h"
#include "tensor/cpu/core/vectors.h"
#include "tensor/mask/blocks.h"

#ifdef __AVX512DQ__
#include <immintrin.h>
#endif

namespace brine::BRINE_CPU {

template <class T>
using Mask = decltype(Vector<T>{} >= Vector<T>{});
template <class T>
using MaskLane = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;

// 2^x of x <= 0, of a vector, by the formula of math::exp2_nonpositive; of NaN any number.
inline Vector<double> exp2_of_lanes(Vector<double> x) {
  for (int l = 0; l < kWidth<double>; ++l) x[l] = math::exp2_nonpositive(x[l]);
  return x;
}
template <class Floats>
[[gnu::always_inline]] inline Floats exp2_of_lanes(Floats x) {
  using Bits = decltype(x < x);
  x = x < -126.0f ? Floats{} - 126.0f : x;
  const Floats shifted = x + math::kRounder, r = x - (shifted - math::kRounder);
  Floats p = 1.326472731e-3f * r + 9.671512991e-3f;
  p = p * r + 5.550733581e-2f;
  p = p * r + 2.402224243e-1f;
  p = p * r + 6.931470037e-1f;
  p = p * r + 1.0f;
  return Floats(Bits(p) + (Bits(shifted) << 23));
}

// The lanes of a mask as bits.
template <class T>
uint64_t bits_of(Mask<T> mask) {
#ifdef __AVX512DQ__
  if constexpr (sizeof(mask) == 64 && sizeof(T) == 4) {
    return _mm512_movepi32_mask(std::bit_cast<__m512i>(mask));
  }
#endif
  uint64_t bits = 0;
  for (int l = 0; l < kWidth<T>; ++l) bits |= uint64_t(mask[l] & 1) << l;
  return bits;
}

// ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)) of kStrands sums.
template <class Strands>
[[gnu::always_inline]] inline auto sum_of_strands(const Strands& s) {
  static_assert(kStrands == 8);
  return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

}  // namespace brine::BRINE_CPU
