// The threads that share one row: a warp if rows are short, a block if they are long. A kernel has
// the kind as its first template argument, and `rows` to detect rows beyond the last.
#pragma once

#include <limits>
#include <type_traits>

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

// Launches a kernel whose rows have the threads `Rows`.
template <class Rows, class... P, class... A>
void launch_rows(const char* name, int64_t rows, void (*kernel)(P...), A... args) {
  if (rows == 0) return;
  const int64_t size = std::is_same_v<Rows, RowWarp> ? kThreads / kWarp : 1;
  launch(name, kernel, dim3(blocks_for(rows, size)), dim3(kThreads), 0, args...);
}

// Launches the kernel of the two that suits rows of C columns.
template <class... P, class... A>
void launch_rows(const char* name, int64_t rows, int64_t C, void (*by_warp)(P...),
                 void (*by_block)(P...), A... args) {
  if (C < kLongRow) return launch_rows<RowWarp>(name, rows, by_warp, args...);
  launch_rows<RowBlock>(name, rows, by_block, args...);
}

}  // namespace brine::cuda
