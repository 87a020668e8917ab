// Scalar formulas, written once and used by every backend, so that a CPU test covers all of them.
//
// The float versions of exp, log and erf have no branches or tables: a loop under `#pragma omp
// simd` over them becomes vector code. The double versions are the C library's and are the
// reference for the float ones.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "tensor/base/host_device.h"

namespace brine::math {

// x rounded to a whole number, |x| < 2^22, in the low bits of a float that is 1.5 * 2^23 +
// round(x).
constexpr float kRounder = 12582912.0f;
BRINE_FORMULA int rounded_bits(float shifted) {
  return std::bit_cast<int>(shifted) - std::bit_cast<int>(kRounder);
}

// exp(r) for |r| <= log(2) / 2; a short chain of dependent steps, not Horner's long one.
BRINE_FORMULA float exp_near_zero(float r) {
  float r2 = r * r;
  float high = 1.3814604e-3f * r2 + (8.3687158e-3f * r + 4.1668388e-2f);
  return (high * r2 + (1.6666521e-1f * r + 4.9999993e-1f)) * r2 + (r + 1);
}

// exp(x), relative error below 2e-7; 0 below -87.3, infinity above 88.7; NaN stays NaN.
BRINE_FORMULA float exp(float x) {
  float clamped = x < -87.33f ? -87.33f : (x > 88.72f ? 88.72f : x);
  float shifted = clamped * 1.44269504f + kRounder, n = shifted - kRounder;
  float p = exp_near_zero(clamped - n * 0.693359375f + n * 2.12194440e-4f);
  // Two factors of 2^(n/2), since 2^128 is not a float.
  int whole = rounded_bits(shifted), half = whole >> 1;
  float y = p * std::bit_cast<float>((half + 127) << 23) *
            std::bit_cast<float>((whole - half + 127) << 23);
  y = x < -87.33f ? 0.0f : y;
  return x > 88.72f ? INFINITY : y;
}
BRINE_FORMULA double exp(double x) { return std::exp(x); }

// exp(x) for x in [-88, 0], or above 0 by a rounding error only. The lowest power of two is
// replaced by 0, so the result is 0 below -87.7.
BRINE_FORMULA float exp_limited(float x) {
  float shifted = x * 1.44269504f + kRounder, n = shifted - kRounder;
  float p = exp_near_zero(x - n * 0.693359375f + n * 2.12194440e-4f);
  return p * std::bit_cast<float>((rounded_bits(shifted) + 127) << 23);
}
BRINE_FORMULA double exp_limited(double x) { return std::exp(x); }

// exp(x) for any x <= 0: shorter than exp.
BRINE_FORMULA float exp_nonpositive(float x) { return exp_limited(x < -88.0f ? -88.0f : x); }
BRINE_FORMULA double exp_nonpositive(double x) { return std::exp(x); }

// 2^x for any x <= 0, or above 0 by a rounding error only, relative error below 2e-7; below -126 it
// is 2^-126; NaN stays NaN. For scores in units of log(2): shorter than exp. The multiply-adds are
// written out: every compiler gives the same bits.
BRINE_FORMULA float exp2_nonpositive(float x) {
  float limited = x < -126.0f ? -126.0f : x;
  float shifted = limited + kRounder, r = limited - (shifted - kRounder);
  float p = std::fma(1.326472731e-3f, r, 9.671512991e-3f);
  p = std::fma(p, r, 5.550733581e-2f);
  p = std::fma(p, r, 2.402224243e-1f);
  p = std::fma(p, r, 6.931470037e-1f);
  p = std::fma(p, r, 1.0f);
  uint32_t bits = std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(shifted) << 23);
  return x == x ? std::bit_cast<float>(bits) : x;
}
BRINE_FORMULA double exp2_nonpositive(double x) { return std::exp2(x); }

// log(x) for normal x > 0, relative error below 3e-7 (absolute near 1).
BRINE_FORMULA float log(float x) {
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
BRINE_FORMULA double log(double x) { return std::log(x); }

// The mass of the normal distribution above u >= 0, given e = exp(-u^2 / 2). Relative error below
// 4e-7 on top of that of e.
BRINE_FORMULA float normal_tail(float u, float e) {
  float t = 1 / (1 + 0.3f * u), t2 = t * t;
  float odd = 3.6088771e-2f * t2 + 2.0934590e-1f;
  float even = -1.5893345e-1f * t2 - 5.6449648e-2f;
  odd = (odd * t2 + 1.3003238e-1f) * t2 + 1.2082630e-1f;
  even = (even * t2 + 9.9465135e-2f) * t2 + 1.1962454e-1f;
  return (odd * t + even) * (t * e);
}
BRINE_FORMULA double normal_tail(double u, double) { return std::erfc(u * 0.7071067811865476) / 2; }

// erf(x), relative error below 4e-7.
BRINE_FORMULA float erf(float x) {
  float a = std::fabs(x), x2 = x * x;
  float p = -5.6314068e-4f;
  p = p * x2 + 4.9175482e-3f;
  p = p * x2 - 2.6711309e-2f;
  p = p * x2 + 1.1280180e-1f;
  p = p * x2 - 3.7612326e-1f;
  p = p * x2 + 1.1283791f;
  float tail = normal_tail(a * 1.41421356f, exp_nonpositive(-x2));
  return a < 1 ? x * p : std::copysign(1 - 2 * tail, x);
}
BRINE_FORMULA double erf(double x) { return std::erf(x); }

// |x|, limited to where the tail is 0 in float: beyond it infinity would be multiplied by 0. NaN
// stays NaN.
BRINE_FORMULA float tail_argument(float x) {
  float u = std::fabs(x);
  return u > 13.26f ? 13.26f : u;
}
BRINE_FORMULA double tail_argument(double x) {
  double u = std::fabs(x);
  return u > 39.0 ? 39.0 : u;
}

// gelu(x) = x Phi(x), Phi the normal distribution function; accurate in the negative tail too.
template <class T>
BRINE_FORMULA T gelu(T x) {
  T u = tail_argument(x);
  return (x > 0 ? x : 0) - u * normal_tail(u, exp_limited(T(-0.5) * u * u));
}

// d gelu / dx = Phi(x) + x phi(x)
template <class T>
BRINE_FORMULA T gelu_grad(T x) {
  T u = tail_argument(x), e = exp_limited(T(-0.5) * u * u);
  // At -|x|; the two tails sum to 1.
  T left = normal_tail(u, e) - u * e * T(0.3989422804014327);
  return x > 0 ? 1 - left : left;
}

template <class T>
BRINE_FORMULA T sigmoid(T x) {
  return 1 / (1 + math::exp(-x));
}

// silu(x) = x sigmoid(x)
template <class T>
BRINE_FORMULA T silu(T x) {
  return x / (1 + math::exp(-x));
}

template <class T>
BRINE_FORMULA T silu_grad(T x) {
  const T s = sigmoid(x);
  return s * (1 + x * (1 - s));
}

// The other gelu, of Hendrycks and Gimpel (2016): x (1 + tanh(z)) / 2 = x sigmoid(2 z) with z =
// sqrt(2 / pi) (x + .044715 x^3).
template <class T>
BRINE_FORMULA T gelu_tanh(T x) {
  return x * sigmoid(T(1.5957691216057308) * (x + T(0.044715) * x * x * x));
}

template <class T>
BRINE_FORMULA T gelu_tanh_grad(T x) {
  const T square = x * x, scale = T(1.5957691216057308);
  const T s = sigmoid(scale * (x + T(0.044715) * square * x));
  return s * (1 + x * (1 - s) * scale * (1 + T(0.134145) * square));
}

// NaN passes through: it is not less than 0.
template <class T>
BRINE_FORMULA T relu(T x) {
  return x < 0 ? T(0) : x;
}

// Gradients of activations, from the gradient of the output y and y itself.
template <class T>
BRINE_FORMULA T relu_grad(T dy, T y) {
  return y > 0 ? dy : T(0);
}
// One element of a layer norm's output, from x - mean.
template <class T>
BRINE_FORMULA T normalized(T centred, T rstd, T w, T b) {
  return centred * rstd * w + b;
}

// Number [p, c] of the d x d identity resampled to L rows: linear with aligned corners, or
// `nearest` (docs/method.md section 1.1). 0 <= p < L, 0 <= c < d.
BRINE_HD double resampled_identity(int64_t p, int64_t c, int64_t L, int64_t d, bool nearest) {
  if (nearest) return c == p * d / L ? 1 : 0;
  const double position = L == 1 ? 0 : double(p * (d - 1)) / double(L - 1);
  const double away = position < double(c) ? double(c) - position : position - double(c);
  return away < 1 ? 1 - away : 0;
}

// First key of column c in a row that sees w keys, K columns (docs/method.md section 2.1):
// floor((2cw + K) / 2K).
BRINE_HD int64_t column_begin(int64_t c, int64_t w, int64_t K) { return (2 * c * w + K) / (2 * K); }

// Keys of a unit of the sums over columns in a row that sees w keys (docs/method.md section 1.6):
// the largest power of two that leaves K columns `units` of them each, 1 if units is 0.
BRINE_HD int64_t unit_of_sums(int64_t w, int64_t K, int64_t units) {
  int64_t unit = 1;
  if (units > 0) {
    while (2 * unit * units * K <= w) unit *= 2;
  }
  return unit;
}

// The columns of these sums: first keys of columns 0 .. K, that of K is w.
struct SumColumns {
  int64_t w, K, unit, whole;  // keys seen, columns, keys of a unit, units seen

  BRINE_HD SumColumns(int64_t w, int64_t K, int64_t units)
      : w(w), K(K), unit(unit_of_sums(w, K, units)), whole(w / unit) {}
  BRINE_HD int64_t begin(int64_t c) const { return c == K ? w : unit * column_begin(c, whole, K); }
  BRINE_HD int64_t keys(int64_t c) const { return begin(c + 1) - begin(c); }
};

// numerator / denominator rounded half to even, both >= 0, denominator > 0 (docs/method.md section
// 2.2).
BRINE_HD int64_t round_half_even(int64_t numerator, int64_t denominator) {
  int64_t q = numerator / denominator, r = numerator % denominator;
  if (2 * r > denominator || (2 * r == denominator && (q & 1))) ++q;
  return q;
}

// The functions that the elementwise kernels of every device apply to each element.
namespace map {

template <class T>
struct Sum {
  BRINE_HD T operator()(T a, T b) const { return a + b; }
};
template <class T>
struct Difference {
  BRINE_HD T operator()(T a, T b) const { return a - b; }
};
template <class T>
struct Product {
  BRINE_HD T operator()(T a, T b) const { return a * b; }
};
template <class T>
struct Scaled {
  T alpha;
  BRINE_HD T operator()(T x) const { return alpha * x; }
};
template <class T>
struct Mixed {
  T alpha, beta;
  BRINE_HD T operator()(T x, T y) const { return alpha * x + beta * y; }
};
}  // namespace map

}  // namespace brine::math
