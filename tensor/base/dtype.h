// Element types. f32 is the computing type; f64 is for tests; bf16 and f16 are for storage and GEMM
// inputs.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <type_traits>

#include "tensor/base/error.h"
#include "tensor/base/host_device.h"

namespace brine {

enum class Dtype : uint8_t { f32, f64, bf16, f16, i32, i64, u8 };

// The upper half of an f32; conversion rounds to nearest even and keeps NaN.
struct bf16 {
  uint16_t bits = 0;
  bf16() = default;
  BRINE_HD explicit bf16(float x) {
    uint32_t u = std::bit_cast<uint32_t>(x);
    bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = nan ? uint16_t((u >> 16) | 0x40) : uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16);
  }
  BRINE_HD explicit operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
};

// IEEE binary16, rounded to nearest even, for compilers without such a type: the bits of x.
BRINE_HD uint16_t half_bits(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return uint16_t(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
  if (a >= 0x47800000u) return uint16_t(sign | 0x7c00u);  // 2^16 and more
  if (a < 0x38800000u) {  // below 2^-14: adding 0.5 leaves the steps of 2^-24 in the last bits
    const float shifted = std::bit_cast<float>(a) + 0.5f;
    return uint16_t(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = a + 0xfffu + ((a >> 13) & 1) - 0x38000000u;
  return uint16_t(sign | (rounded >> 13));
}
BRINE_HD float half_value(uint16_t bits) {
  const uint32_t sign = uint32_t(bits & 0x8000u) << 16, a = bits & 0x7fffu;
  if (a >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((a & 0x3ffu) << 13));
  const float value = a < 0x400u ? float(a) * 5.9604644775390625e-8f
                                 : std::bit_cast<float>((a << 13) + 0x38000000u);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

#ifdef __aarch64__
using CompilerHalf = __fp16;  // _Float16 exists in C++ since GCC 13 only
#elif !defined(__CUDACC__)
using CompilerHalf = _Float16;
#endif

// IEEE binary16.
struct f16 {
  uint16_t bits = 0;
  f16() = default;
#ifdef __CUDACC__
  BRINE_HD explicit f16(float x) : bits(half_bits(x)) {}
  BRINE_HD explicit operator float() const { return half_value(bits); }
#else
  explicit f16(float x) {
    CompilerHalf h = CompilerHalf(x);
    std::memcpy(&bits, &h, 2);
  }
  explicit operator float() const {
    CompilerHalf h;
    std::memcpy(&h, &bits, 2);
    return float(h);
  }
#endif
};

inline size_t item_size(Dtype t) {
  switch (t) {
    case Dtype::f64:
    case Dtype::i64:
      return 8;
    case Dtype::f32:
    case Dtype::i32:
      return 4;
    case Dtype::bf16:
    case Dtype::f16:
      return 2;
    case Dtype::u8:
      return 1;
  }
  return 0;
}

inline const char* name_of(Dtype t) {
  constexpr const char* names[] = {"f32", "f64", "bf16", "f16", "i32", "i64", "u8"};
  return names[int(t)];
}
inline std::ostream& operator<<(std::ostream& os, Dtype t) { return os << name_of(t); }

inline bool is_float(Dtype t) { return t <= Dtype::f16; }
inline bool has_16_bits(Dtype t) { return t == Dtype::bf16 || t == Dtype::f16; }
// The type of sums over numbers of this type.
inline Dtype sum_type(Dtype t) { return has_16_bits(t) ? Dtype::f32 : t; }

// The Dtype of a C++ element type.
template <class T>
struct DtypeOf;
template <>
struct DtypeOf<float> : std::integral_constant<Dtype, Dtype::f32> {};
template <>
struct DtypeOf<double> : std::integral_constant<Dtype, Dtype::f64> {};
template <>
struct DtypeOf<bf16> : std::integral_constant<Dtype, Dtype::bf16> {};
template <>
struct DtypeOf<f16> : std::integral_constant<Dtype, Dtype::f16> {};
template <>
struct DtypeOf<int32_t> : std::integral_constant<Dtype, Dtype::i32> {};
template <>
struct DtypeOf<int64_t> : std::integral_constant<Dtype, Dtype::i64> {};
template <>
struct DtypeOf<uint8_t> : std::integral_constant<Dtype, Dtype::u8> {};

// Calls f.operator()<T>() with the computing type of t: float or double, nothing else.
template <class F>
void dispatch_float(Dtype t, F&& f) {
  if (t == Dtype::f32) {
    f.template operator()<float>();
  } else {
    check(t == Dtype::f64, "dispatch: wanted f32 or f64, got ", t);
    f.template operator()<double>();
  }
}

// Calls f.operator()<T>() with the element type of t.
template <class F>
void dispatch_any(Dtype t, F&& f) {
  switch (t) {
    case Dtype::f32:
      return f.template operator()<float>();
    case Dtype::f64:
      return f.template operator()<double>();
    case Dtype::bf16:
      return f.template operator()<bf16>();
    case Dtype::f16:
      return f.template operator()<f16>();
    case Dtype::i32:
      return f.template operator()<int32_t>();
    case Dtype::i64:
      return f.template operator()<int64_t>();
    case Dtype::u8:
      return f.template operator()<uint8_t>();
  }
}

}  // namespace brine
