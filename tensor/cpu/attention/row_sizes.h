// The row pointers of a flat CSR mask from the sizes of its rows.
#pragma once

#include "tensor/kernels/kernel.h"
#include "tensor/mask/csr.h"

namespace brine::BRINE_CPU {

// csr.row_pointers from csr.head_offsets.
inline void sum_row_sizes(const FlatCsr& csr) {
  const int64_t H = csr.heads, T = csr.length;
  const auto* offsets = csr.head_offsets.data<int32_t>();
  auto* pointers = csr.row_pointers.data<int64_t>();
  int64_t total = 0;
  for (int64_t b = 0; b < csr.batch; ++b) {
    int64_t* row_starts = pointers + b * (T + 1);
    row_starts[0] = total;
    for (int64_t t = 0; t < T; ++t) {
      total += offsets[(b * T + t) * (H + 1) + H];
      row_starts[t + 1] = total;
    }
  }
}

}  // namespace brine::BRINE_CPU
