// Sums and maxima of a row in a fixed number of lanes: vector registers contain the lanes, and the
// order of additions depends neither on the width of the registers nor on the compiler.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "tensor/kernels/kernel.h"

namespace brine::BRINE_CPU {

constexpr int kLanes = 32;  // four registers of AVX2, which hides the latency of an addition

// The lanes added pairwise.
template <class T>
T folded(T* lane) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
  }
  return lane[0];
}

// Sum of f(i) for i in [0, n).
template <class T, class F>
T sum_lanes(int64_t n, F f) {
  T lane[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma omp simd
    for (int j = 0; j < kLanes; ++j) lane[j] += f(i + j);
  }
  for (int j = 0; i < n; ++i, ++j) lane[j] += f(i);
  return folded(lane);
}

// Sums of f(i) and g(i), in one pass.
template <class T, class F, class G>
void sum_lanes(int64_t n, F f, G g, T& sum_f, T& sum_g) {
  T lane_f[kLanes] = {}, lane_g[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma omp simd
    for (int j = 0; j < kLanes; ++j) {
      lane_f[j] += f(i + j);
      lane_g[j] += g(i + j);
    }
  }
  for (int j = 0; i < n; ++i, ++j) {
    lane_f[j] += f(i);
    lane_g[j] += g(i);
  }
  sum_f = folded(lane_f);
  sum_g = folded(lane_g);
}

// Largest f(i), at least the lowest finite number; NaN is ignored.
template <class T, class F>
T max_lanes(int64_t n, F f) {
  T lane[kLanes];
  std::fill(lane, lane + kLanes, std::numeric_limits<T>::lowest());
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma omp simd
    for (int j = 0; j < kLanes; ++j) {
      const T v = f(i + j);
      lane[j] = v > lane[j] ? v : lane[j];
    }
  }
  for (int j = 0; i < n; ++i, ++j) {
    const T v = f(i);
    lane[j] = v > lane[j] ? v : lane[j];
  }
  return *std::max_element(lane, lane + kLanes);
}

}  // namespace brine::BRINE_CPU
