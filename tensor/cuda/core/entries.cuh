// The entries of a flat CSR mask, as kernels ask for them (see csr.h).
#pragma once

#include "tensor/cuda/core/common.cuh"

namespace brine::cuda {

// The entries of (b, h, t): first <= e < first + count, with keys columns[e] - base.
struct Entries {
  const int32_t* columns;
  int64_t first, count, base;
};

struct MaskRows {
  explicit MaskRows(const FlatCsr& csr)
      : pointers(csr.row_pointers.data<int64_t>()),
        offsets(csr.head_offsets.data<int32_t>()),
        columns(csr.columns.data<int32_t>()),
        H(csr.heads),
        T(csr.length),
        S(csr.keys) {}

  // Row (bh T + t) of all heads; the rows of one head lie together.
  __device__ Entries operator()(int64_t row) const {
    const int64_t bh = row / T, t = row % T, b = bh / H, h = bh % H;
    const int32_t* offset = offsets + (b * T + t) * (H + 1) + h;
    const int64_t first = pointers[b * (T + 1) + t] + offset[0];
    return {columns + first, first, offset[1] - offset[0], h * S};
  }

  const int64_t* pointers;
  const int32_t *offsets, *columns;
  int64_t H, T, S;
};

}  // namespace brine::cuda
