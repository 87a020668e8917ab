// Dispatch for kernels that compute in one type on rows stored in another.
#pragma once

#include "tensor/base/dtype.h"

namespace brine {

// The exact value of a stored number.
template <class S>
BRINE_HD double widened(S x) {
  if constexpr (sizeof(S) == 2) {
    return double(float(x));
  } else {
    return double(x);
  }
}

// Whether rows of `rows` can be read into sums in `sums`: of the same type, or of 16 bits into f32.
inline bool can_store(Dtype sums, Dtype rows) {
  return sums == rows || (sums == Dtype::f32 && (rows == Dtype::bf16 || rows == Dtype::f16));
}

// Calls f.operator()<T, S>() for sums in T over rows stored as S: the same type, or T is f32 and S
// has 16 bits.
template <class F>
void dispatch_stored(Dtype sums, Dtype rows, F&& f) {
  if (sums == Dtype::f32 && rows == Dtype::bf16) return f.template operator()<float, bf16>();
  if (sums == Dtype::f32 && rows == Dtype::f16) return f.template operator()<float, f16>();
  check(sums == rows, "dispatch: rows of ", rows, " for sums in ", sums);
  dispatch_float(sums, [&]<class T>() { f.template operator()<T, T>(); });
}

}  // namespace brine
