// Means of an attention loss over the rows that see a key, and the rows' share in its gradient.
#pragma once

#include "tensor/cuda/core/common.cuh"

namespace brine::cuda {

// Rows that see a key, over all sequences and heads; all threads of the block must call.
__device__ inline double counted_rows(const RowWidths& widths, int64_t B, int64_t H) {
  double rows = 0;
  for (int64_t b = threadIdx.x; b < B; b += blockDim.x) rows += double(widths.valid(b));
  return double(H) * block_sum(rows);
}

// y [2] = sums of parts [n, 2] in a fixed order, divided by the number of rows. One block.
template <class T>
__global__ void loss_means_kernel(T* y, const double* parts, int64_t n, RowWidths widths, int64_t B,
                                  int64_t H) {
  double first = 0, second = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    first += parts[2 * i];
    second += parts[2 * i + 1];
  }
  first = block_sum(first);
  second = block_sum(second);
  const double rows = counted_rows(widths, B, H);
  if (threadIdx.x > 0) return;
  y[0] = rows > 0 ? T(first / rows) : T(0);
  y[1] = rows > 0 ? T(second / rows) : T(0);
}

// weights [2] = dy [2] divided by the number of rows. One block.
template <class T>
__global__ void loss_weights_kernel(double* weights, const T* dy, RowWidths widths, int64_t B,
                                    int64_t H) {
  const double rows = counted_rows(widths, B, H);
  if (threadIdx.x < 2) weights[threadIdx.x] = rows > 0 ? double(dy[threadIdx.x]) / rows : 0;
}

}  // namespace brine::cuda
