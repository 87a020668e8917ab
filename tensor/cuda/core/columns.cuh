// The first keys of a row's columns and how many keys they own, without slow divisions.
#pragma once

#include "tensor/cuda/core/common.cuh"

namespace brine::cuda {

// a / b of numbers >= 0: in 32 bits if they fit, which is far faster.
__device__ inline int64_t divide(int64_t a, int64_t b) {
  if (((uint64_t(a) | uint64_t(b)) >> 32) == 0) return int64_t(uint32_t(a) / uint32_t(b));
  return a / b;
}

// math::column_begin.
__device__ inline int64_t column_begin(int64_t c, int64_t w, int64_t K) {
  return divide(2 * c * w + K, 2 * K);
}

// The column of key j < w: the last one that starts at or before it.
__device__ inline int64_t column_of(int64_t j, int64_t w, int64_t K) {
  return divide(K * (2 * j + 1) - 1, 2 * w);
}

// The columns lane, lane + 32, ... of a row that sees w keys, with the number of keys of each.
class WarpColumns {
 public:
  __device__ WarpColumns(int64_t w, int64_t K) : K_(K), turn_(2 * K), size_(divide(w, K)) {
    const int64_t lane = int64_t(threadIdx.x) % kWarp;
    longer_ = 2 * (w - size_ * K);
    start_ = rest(2 * lane * w + K);
    jump_ = rest(2 * kWarp * w);
  }

  // f(column, keys) for the columns of this lane.
  template <class F>
  __device__ void each(F&& f) const {
    int64_t place = start_;  // (2 c w + K) modulo 2 K
    for (int64_t c = int64_t(threadIdx.x) % kWarp; c < K_; c += kWarp) {
      f(c, size_ + (place + longer_ >= turn_ ? 1 : 0));
      place += jump_;
      if (place >= turn_) place -= turn_;
    }
  }

 private:
  __device__ int64_t rest(int64_t a) const { return a - divide(a, turn_) * turn_; }

  int64_t K_, turn_, size_, longer_, start_, jump_;
};

}  // namespace brine::cuda
