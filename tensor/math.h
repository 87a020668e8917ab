// Scalar formulas, written once and run by every backend, so that a CPU test covers them all.
//
// The float versions of exp, log, erf and tanh are free of branches and tables: a loop under
// `#pragma omp simd` over them becomes vector code. The double versions are the C library's: they
// serve as the oracle of the float ones.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "tensor/random.h"

namespace brine::math {

// exp(x), relative error below 2e-7; 0 below -87.3, infinity above 88.7; NaN stays NaN.
BRINE_HD float exp(float x) {
  float clamped = x < -87.33f ? -87.33f : (x > 88.72f ? 88.72f : x);
  float n = std::nearbyintf(clamped * 1.44269504f);
  float r = clamped - n * 0.693359375f + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1;
  // Two factors of 2^(n/2), since 2^128 has no float.
  int half = int(n) >> 1, rest = int(n) - half;
  float y = p * std::bit_cast<float>((half + 127) << 23) * std::bit_cast<float>((rest + 127) << 23);
  y = x < -87.33f ? 0.0f : y;
  y = x > 88.72f ? INFINITY : y;
  return x != x ? x : y;
}
BRINE_HD double exp(double x) { return std::exp(x); }

// log(x) for normal x > 0, relative error below 3e-7 (absolute near 1).
BRINE_HD float log(float x) {
  uint32_t u = std::bit_cast<uint32_t>(x);
  int e = int(u >> 23) - 126;
  float m = std::bit_cast<float>((u & 0x007fffffu) | 0x3f000000u);  // [0.5, 1)
  bool low = m < 0.707106781f;
  e -= low ? 1 : 0;
  m = low ? m + m : m;
  float f = m - 1, z = f * f;
  float p = 7.0376836292e-2f;
  p = p * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  float y = p * f * z + float(e) * -2.12194440e-4f - 0.5f * z;
  return f + y + float(e) * 0.693359375f;
}
BRINE_HD double log(double x) { return std::log(x); }

// erf(x), absolute error below 2e-7 (Abramowitz and Stegun 7.1.26 is 1.5e-7 in exact arithmetic;
// near 0 the series keeps the relative error small too).
BRINE_HD float erf(float x) {
  float a = std::fabs(x), x2 = x * x;
  float series = 1.12837917f + x2 * (-0.376126389f + x2 * (0.112837917f + x2 * (-0.0268661706f +
                 x2 * (0.00522397760f + x2 * -0.000854832f))));
  float t = 1 / (1 + 0.3275911f * a);
  float p = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f +
            t * 1.061405429f))));
  float tail = std::copysign(1 - p * exp(-x2), x);
  return a < 0.75f ? x * series : tail;
}
BRINE_HD double erf(double x) { return std::erf(x); }

// gelu(x) = x Phi(x), Phi the normal distribution function.
template <class T>
BRINE_HD T gelu(T x) {
  return T(0.5) * x * (1 + math::erf(x * T(0.7071067811865476)));
}

// d gelu / dx = Phi(x) + x phi(x)
template <class T>
BRINE_HD T gelu_grad(T x) {
  T cdf = T(0.5) * (1 + math::erf(x * T(0.7071067811865476)));
  return cdf + x * math::exp(-x * x / 2) * T(0.3989422804014327);
}

template <class T>
BRINE_HD T sigmoid(T x) {
  return 1 / (1 + math::exp(-x));
}

// First key of column c in a row that sees w keys, K columns (method 2.1): floor((2cw + K) / 2K).
BRINE_HD int64_t column_begin(int64_t c, int64_t w, int64_t K) { return (2 * c * w + K) / (2 * K); }

// numerator / denominator rounded half to even, both >= 0, denominator > 0 (method 2.2).
BRINE_HD int64_t round_half_even(int64_t numerator, int64_t denominator) {
  int64_t q = numerator / denominator, r = numerator % denominator;
  if (2 * r > denominator || (2 * r == denominator && (q & 1))) ++q;
  return q;
}

}  // namespace brine::math
