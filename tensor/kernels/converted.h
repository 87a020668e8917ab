// Conversion of numbers between element types.
#pragma once

#include <cmath>
#include <type_traits>

#include "tensor/base/dtype.h"

namespace brine {

template <class T>
constexpr bool is_half = std::is_same_v<T, bf16> || std::is_same_v<T, f16>;

// A float between double and a half type: rounded to odd, so that the second rounding gives the
// result of a single one.
BRINE_HD float round_to_odd(double x) {
  const float f = float(x);
  if (double(f) == x || x != x) return f;
  uint32_t u = std::bit_cast<uint32_t>(f);
  if (std::fabs(double(f)) > std::fabs(x)) --u;
  return std::bit_cast<float>(u | 1);
}

template <class To, class From>
BRINE_HD To converted(const From& x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (is_half<From>) {
    return converted<To>(float(x));
  } else if constexpr (is_half<To> && std::is_same_v<From, double>) {
    return To(round_to_odd(x));
  } else if constexpr (is_half<To>) {
    return To(float(x));
  } else {
    return To(x);
  }
}

}  // namespace brine
