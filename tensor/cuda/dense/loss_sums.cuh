// Means of an attention loss over the rows that see a key, and the rows' share in its gradient.
#pragma once

#include "tensor/cuda/core/band_sums.cuh"

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

struct PairTerms {
  const double* parts;  // [n, 2]
  __device__ void operator()(double (&sum)[1], int64_t, int64_t i, int64_t c) const {
    sum[0] += parts[2 * i + c];
  }
};
struct StorePair {
  double* sums;
  __device__ void operator()(int64_t, int64_t, int64_t c, const double (&sum)[1]) const {
    sums[c] = sum[0];
  }
};

// The kernel above, with many parts summed by many blocks before.
template <class T>
void loss_means(const char* name, const Tensor& y, const Tensor& parts, const RowWidths& widths,
                int64_t B, int64_t H) {
  constexpr int64_t kFew = kThreads / 2;
  int64_t n = parts.dim(0);
  Tensor sums = parts;
  if (n > kFew) {
    sums = Tensor::empty({1, 2}, Dtype::f64, y.device());
    sum_bands<1>(name, 1, n, 2, PairTerms{parts.data<double>()}, StorePair{sums.data<double>()},
                 y.device());
    n = 1;
  }
  launch(name, loss_means_kernel<T>, dim3(1), dim3(kThreads), 0, y.data<T>(), sums.data<double>(),
         n, widths, B, H);
}

// weights [2] = dy [2] divided by the number of rows. One block.
template <class T>
__global__ void loss_weights_kernel(double* weights, const T* dy, RowWidths widths, int64_t B,
                                    int64_t H) {
  const double rows = counted_rows(widths, B, H);
  if (threadIdx.x < 2) weights[threadIdx.x] = rows > 0 ? double(dy[threadIdx.x]) / rows : 0;
}

}  // namespace brine::cuda
