// Code shared by the columns of a full pass and of one new token: products with prefix sums at the
// borders of columns, and the logarithms of the columns' shares.
#pragma once

#include <cstdint>

#include "tensor/base/math.h"
#include "tensor/cpu/core/vectors.h"
#include "tensor/kernels/kernel.h"

namespace brine::BRINE_CPU {

using PriorVector = Vector<double>;
constexpr int64_t kPriorWide = kWidth<double>;

inline PriorVector load_prior(const double* p) { return load(p); }

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

// What a row adds to its scores, and its derivative. A column owns n units of keys or n + 1, the
// last one also the keys that are less than a unit.
template <class T>
struct ShareRow {
  const int32_t* begin;  // [K + 1] first keys of the columns of a row that sees w keys
  int64_t w, K;
  int64_t unit;
  double floor;  // of a share

  // share (w / n_c) of every column from the products of the query with the sums over columns, 1
  // where it owns no key; out may be the products. Returns the products' sum.
  double ratios(const T* products, T* out) const {
    T total = 0;
    const T last = products[K - 1];
#pragma omp simd reduction(+ : total)
    for (int64_t c = 0; c < K; ++c) total += products[c];
    const int32_t fewer = int32_t(w / unit / K * unit);
    const T least = T(floor);
    const T few = fewer ? T(double(w) / double(fewer)) : T(0),
            more = T(double(w) / double(fewer + unit));
#pragma omp simd
    for (int64_t c = 0; c < K; ++c) {
      const int32_t keys = begin[c + 1] - begin[c];
      const T share = products[c] / total;  // 1 if it is all, which a product could miss
      const T mean = keys == fewer ? few : more;
      out[c] = keys ? (share < least ? least : share) * mean : T(1);
    }
    if (w % unit) {
      const T share = last / total;
      out[K - 1] = (share < least ? least : share) * T(double(w) / double(begin[K] - begin[K - 1]));
    }
    return double(total);
  }

  // y = scores + gain log(share (w / n_c)).
  void add_logs(const T* products, const T* scores, T gain, T* y) const {
    ratios(products, y);
#pragma omp simd
    for (int64_t c = 0; c < K; ++c) y[c] = scores[c] + gain * math::log(y[c]);
  }

  // The products become the derivatives with respect to them. Returns the part of the gain's
  // gradient. `value` [K] is scratch memory.
  double slopes(T* products, const T* dy, double gain, T* value) const {
    const double total = ratios(products, value);
    const double least = floor * total;
    double dgain = 0, sum = 0;
#pragma omp simd
    for (int64_t c = 0; c < K; ++c) value[c] = math::log(value[c]);
#pragma omp simd reduction(+ : dgain, sum)
    for (int64_t c = 0; c < K; ++c) {
      const bool owns = begin[c + 1] > begin[c];
      const double g = owns ? double(dy[c]) : 0.0;
      dgain += g * double(value[c]);
      sum += double(products[c]) < least ? 0.0 : g;
    }
    const double all = gain * sum / total;
#pragma omp simd
    for (int64_t c = 0; c < K; ++c) {
      const bool owns = begin[c + 1] > begin[c];
      const double product = owns ? double(products[c]) : 1.0;
      const double direct = product < least ? 0.0 : gain * double(dy[c]) / product;
      products[c] = owns ? T(direct - all) : T(0);
    }
    return dgain;
  }
};

// out[c] = products[c] scale / n_c, 0 where column c owns no key; out may be the products. begin, w
// and unit as in ShareRow.
template <class T>
void take_means(const int32_t* begin, int64_t w, int64_t K, int64_t unit, double scale,
                const T* products, T* out) {
  const int32_t fewer = int32_t(w / unit / K * unit);
  const T few = fewer ? T(scale / double(fewer)) : T(0), more = T(scale / double(fewer + unit));
  const T last = products[K - 1];
#pragma omp simd
  for (int64_t c = 0; c < K; ++c) {
    const int32_t keys = begin[c + 1] - begin[c];
    out[c] = keys ? products[c] * (keys == fewer ? few : more) : T(0);
  }
  if (w % unit) out[K - 1] = last * T(scale / double(begin[K] - begin[K - 1]));
}

// y = x + gain z; y may be either.
template <class T>
void add_scaled(T* y, const T* x, const T* z, T gain, int64_t K) {
#pragma omp simd
  for (int64_t c = 0; c < K; ++c) y[c] = x[c] + gain * z[c];
}

}  // namespace brine::BRINE_CPU
