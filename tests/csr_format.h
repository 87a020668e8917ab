// The arrays of a flat CSR mask against a dense one.
#pragma once

#include "tests/sparse_oracle.h"

namespace brine::test {

// The three arrays of the format, read off a dense mask.
inline void check_csr_format(const FlatCsr& csr, const std::vector<double>& mask,
                             const MaskCase& m) {
  std::vector<double> pointers, offsets, columns;
  double total = 0;
  for (int64_t b = 0; b < m.B; ++b) {
    pointers.push_back(total);
    for (int64_t t = 0; t < m.T; ++t) {
      double row = 0;
      offsets.push_back(0);
      for (int64_t h = 0; h < m.H; ++h) {
        for (int64_t j = 0; j < m.T; ++j) {
          if (mask[m.index(b, h, t, j, m.T)] == 0) continue;
          columns.push_back(double(h * m.T + j));
          ++row;
        }
        offsets.push_back(row);
      }
      total += row;
      pointers.push_back(total);
    }
  }
  CHECK(csr.row_pointers.to_vector() == pointers);
  CHECK(csr.head_offsets.to_vector() == offsets);
  CHECK(csr.columns.to_vector() == columns);
  CHECK(csr.row_pointers.dtype() == Dtype::i64);
  CHECK(csr.columns.dtype() == Dtype::i32);
}

}  // namespace brine::test
