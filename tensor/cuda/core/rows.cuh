// The threads that share one row: a warp if rows are short, a block if they are long. A kernel has
// the kind as its first template argument, and `rows` to detect rows beyond the last.
#pragma once

#include <limits>

#include "tensor/cuda/core/common.cuh"

namespace brine::cuda {

struct RowWarp {
  __device__ static int64_t row() {
    return (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  }
  __device__ static int lane() { return int(threadIdx.x) % kWarp; }
  __device__ static int size() { return kWarp; }
  template <class T>
  __device__ static T sum(T value) {
    return warp_sum(value);
  }
  template <class T>
  __device__ static T max(T value) {
    return warp_max(value);
  }
};

struct RowBlock {
  __device__ static int64_t row() { return blockIdx.x; }
  __device__ static int lane() { return int(threadIdx.x); }
  __device__ static int size() { return int(blockDim.x); }
  template <class T>
  __device__ static T sum(T value) {
    return block_sum(value);
  }
  template <class T>
  __device__ static T max(T value) {
    return block_reduce(value, -std::numeric_limits<T>::infinity(), Max{});
  }
};

constexpr int64_t kLongRow = 1024;  // columns from which a row has a block

// Launches the kernel of the two that suits rows of C columns.
template <class... P, class... A>
void launch_rows(const char* name, int64_t rows, int64_t C, void (*by_warp)(P...),
                 void (*by_block)(P...), A... args) {
  if (rows == 0) return;
  if (C < kLongRow) {
    launch(name, by_warp, dim3(blocks_for(rows, kThreads / kWarp)), dim3(kThreads), 0, args...);
  } else {
    launch(name, by_block, dim3(blocks_for(rows, 1)), dim3(kThreads), 0, args...);
  }
}

}  // namespace brine::cuda
