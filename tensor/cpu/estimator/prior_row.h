// Code shared by the prior of a full pass and that of one new token: products with sums of key
// features at the borders of columns, and the logarithms of the columns' shares.
#pragma once

#include <cstdint>
#include <cstring>

#include "tensor/kernels/kernel.h"
#include "tensor/math.h"

namespace brine::BRINE_CPU {

#ifdef __AVX512F__
typedef double PriorVector __attribute__((vector_size(64)));
#else
typedef double PriorVector __attribute__((vector_size(32)));
#endif
constexpr int64_t kPriorWide = sizeof(PriorVector) / sizeof(double);

inline PriorVector load_prior(const double* p) {
  PriorVector v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

inline double sum_prior(PriorVector v) {
  double s = 0;
  for (int64_t i = 0; i < kPriorWide; ++i) s += v[i];
  return s;
}

// out[0..3] = q . p0 .. q . p3; n is a multiple of 8.
inline void dot4(const double* q, const double* p0, const double* p1, const double* p2,
                 const double* p3, int64_t n, double* out) {
  PriorVector a0 = {}, a1 = {}, a2 = {}, a3 = {};
  for (int64_t i = 0; i < n; i += kPriorWide) {
    const PriorVector x = load_prior(q + i);
    a0 += x * load_prior(p0 + i);
    a1 += x * load_prior(p1 + i);
    a2 += x * load_prior(p2 + i);
    a3 += x * load_prior(p3 + i);
  }
  out[0] = sum_prior(a0);
  out[1] = sum_prior(a1);
  out[2] = sum_prior(a2);
  out[3] = sum_prior(a3);
}

// out[c] = log((w / n_c) mass_c) of every column, 0 where it owns no key. begin [K + 1] are the
// first keys after the borders of a row that sees w keys, below [K + 1] the query's product with
// the sum of the keys before each. A column owns w / K keys or one more.
template <class T>
void log_shares(const int32_t* begin, const double* below, int64_t w, int64_t K, T* out) {
  const int32_t fewer = int32_t(w / K);
  const double mean = double(w) / below[K];
  const double few = fewer ? mean / double(fewer) : 0, more = mean / double(fewer + 1);
#pragma omp simd
  for (int64_t c = 0; c < K; ++c) {
    const int32_t keys = begin[c + 1] - begin[c];
    const double ratio = (below[c + 1] - below[c]) * (keys == fewer ? few : more);
    out[c] = keys ? T(ratio) : T(1);
  }
#pragma omp simd
  for (int64_t c = 0; c < K; ++c) out[c] = math::log(out[c]);
}

}  // namespace brine::BRINE_CPU
