// Argument checks that the ops of decoding share.
#include "autograd/step_checks.h"

namespace brine {

void check_places(const char* op, const char* name, const Tensor& at, int64_t B, int64_t limit) {
  check(at.defined() && at.dtype() == Dtype::i64 && at.shape() == Shape{B}, op, ": ", name,
        " must be i64 [", B, "]");
  for (int64_t b = 0; b < B; ++b) {
    const int64_t place = at.data<int64_t>()[b];
    check(place >= 0 && place <= limit, op, ": ", name, " ", place, " of sequence ", b,
          " is outside 0..", limit);
  }
}

void check_row(const char* op, const Tensor& row, const Tensor& like, int64_t columns) {
  check(row.shape() == Shape{like.dim(0), like.dim(1), 1, columns} && row.dtype() == like.dtype(),
        op, ": a row must be ", like.dtype(), " [", like.dim(0), ", ", like.dim(1), ", 1, ",
        columns, "], got ", row.dtype(), " ", row.shape());
}

}  // namespace brine
