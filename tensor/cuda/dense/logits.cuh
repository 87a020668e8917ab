// log(sum of exp) of a row that is read once: each thread keeps a running one, and they are
// combined at the end.
#pragma once

#include <cmath>
#include <limits>

#include "tensor/cuda/core/rows.cuh"

namespace brine::cuda {

template <class T>
struct RunningLse {
  static constexpr int kAtOnce = 4;  // values per call of add(): independent loads

  T top = std::numeric_limits<T>::lowest();
  double sum = 0;

  // Values of -inf add nothing. NaN is not a maximum; it stays in the sum.
  __device__ void add(const T (&x)[kAtOnce]) {
    T highest = top;
    for (int j = 0; j < kAtOnce; ++j) highest = x[j] > highest ? x[j] : highest;
    if (highest > top) {
      sum *= math::exp(double(top) - double(highest));
      top = highest;
    }
    T terms = 0;
    for (int j = 0; j < kAtOnce; ++j) terms += math::exp_nonpositive(x[j] - top);
    sum += double(terms);
  }

  // The combined value of all threads of a row.
  template <class Row>
  __device__ double value() const {
    const T highest = Row::max(top);
    const double all = Row::sum(sum * math::exp(double(top) - double(highest)));
    return double(highest) + math::log(all);
  }
};

// Of a row of n values, by all threads of the row.
template <class Row, class T>
__device__ double row_lse(const T* x, int64_t n) {
  constexpr int kN = RunningLse<T>::kAtOnce;
  RunningLse<T> total;
  for (int64_t first = Row::lane(); first < n; first += kN * Row::size()) {
    T values[kN];
    for (int j = 0; j < kN; ++j) {
      const int64_t i = first + j * Row::size();
      values[j] = i < n ? x[i] : -std::numeric_limits<T>::infinity();
    }
    total.add(values);
  }
  return total.template value<Row>();
}

}  // namespace brine::cuda
