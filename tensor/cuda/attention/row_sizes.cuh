// The row pointers of a flat CSR mask from the sizes of its rows, by one prefix sum.
#pragma once

#include "tensor/cuda/core/prefix_sum.cuh"
#include "tensor/mask/csr.h"

namespace brine::cuda {

// Entries of row r of all sequences, and row_pointers [B, T + 1] from their sums.
struct RowTotals {
  const int32_t* offsets;
  int64_t H;
  __device__ int64_t operator()(int64_t r) const { return offsets[r * (H + 1) + H]; }
};
struct RowPointers {
  int64_t* pointers;
  int64_t T;
  __device__ void operator()(int64_t r, int64_t below, int64_t upto) const {
    const int64_t b = r / T, t = r % T;
    pointers[b * (T + 1) + t + 1] = upto;
    if (t == 0) pointers[b * (T + 1)] = below;
  }
};

// csr.row_pointers from csr.head_offsets; `name` is for messages.
inline void sum_row_sizes(const char* name, const FlatCsr& csr) {
  const int64_t H = csr.heads, T = csr.length, rows = csr.batch * T;
  int64_t* pointers = csr.row_pointers.data<int64_t>();
  if (rows > 0) {
    return prefix_sum(name, rows, RowTotals{csr.head_offsets.data<int32_t>(), H},
                      RowPointers{pointers, T}, csr.row_pointers.device());
  }
  if (csr.batch == 0) return;
  const size_t bytes = size_t(csr.row_pointers.numel()) * sizeof(int64_t);
  check_cuda(cudaMemsetAsync(pointers, 0, bytes, stream()), name);
}

}  // namespace brine::cuda
