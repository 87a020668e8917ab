// The flat CSR mask compared with coordinates, for masks of any origin.
#pragma once

#include <string>
#include <vector>

#include "apps/bench/bench.h"

namespace brine::bench {

struct CooCase {
  Tensor q, k, v;    // f32 [1, H, T, d]
  Tensor selected;   // u8 [1, H, T, K]
  int64_t kept;      // k
  std::string note;  // appended to the rows' names
};

// ratio: time over that of flat CSR.
void coo_rows(RowSink& rows, const CooCase& given);

}  // namespace brine::bench
