// Argument checks that ops share.
#include "autograd/step_checks.h"

#include <limits>

#include "autograd/ops_estimator.h"
#include "tensor/base/stored.h"
#include "tensor/mask/csr.h"

namespace brine {

void check_positions(const char* op, const char* name, const Tensor& at, int64_t B, int64_t limit) {
  check(at.defined() && at.dtype() == Dtype::i64 && at.shape() == Shape{B}, op, ": ", name,
        " must be i64 [", B, "]");
  for (int64_t b = 0; b < B; ++b) {
    const int64_t position = at.data<int64_t>()[b];
    check(position >= 0 && position <= limit, op, ": ", name, " ", position, " of sequence ", b,
          " is outside 0..", limit);
  }
}

void check_row(const char* op, const Tensor& row, const Tensor& like, int64_t columns) {
  check(row.shape() == Shape{like.dim(0), like.dim(1), 1, columns} &&
            can_store(row.dtype(), like.dtype()),
        op, ": a row must be ", like.dtype(), " [", like.dim(0), ", ", like.dim(1), ", 1, ",
        columns, "], got ", row.dtype(), " ", row.shape());
}

void check_columns(const char* op, const char* names, const Tensor& q, const Tensor& k,
                   const Visibility& visible, const ColumnGrid& grid) {
  check(q.rank() == 4 && k.rank() == 4 && k.dtype() == q.dtype() && k.dim(0) == q.dim(0) &&
            k.dim(1) > 0 && q.dim(1) % k.dim(1) == 0 && k.dim(2) == visible.first + q.dim(2) &&
            k.dim(3) == q.dim(3),
        op, ": ", names, " must be [B, H, T, m] and [B, G, T, m], G a divisor of H, got ",
        q.shape(), " and ", k.shape(), " with rows from ", visible.first, " on");
  check(visible.first == 0 || (grid.step == 1 && !grad_enabled()), op, ": rows from ",
        visible.first, " on have no gradient and step 1");
  check(grid.step >= 1, op, ": step is ", grid.step, ", must be at least 1");
  check(grid.units >= 0, op, ": units are ", grid.units, ", must not be negative");
  check_visibility(op, visible, q.dim(0), k.dim(2));
  check(k.dim(2) < (int64_t(1) << 30), op, ": ", k.dim(2), " tokens are too many");
}

void check_scores(const char* op, const Tensor& scores, const Tensor& gain, const Tensor& q,
                  int64_t step) {
  const int64_t B = q.dim(0), H = q.dim(1), R = (q.dim(2) + step - 1) / step;
  check(scores.rank() == 4 && scores.dtype() == q.dtype() && scores.dim(0) == B &&
            scores.dim(1) == H && scores.dim(2) == R && scores.dim(3) > 0,
        op, ": scores must be ", q.dtype(), " [", B, ", ", H, ", ", R, ", K], got ", scores.dtype(),
        " ", scores.shape());
  check(gain.shape() == Shape{H} && gain.dtype() == scores.dtype(), op, ": gain must be [", H,
        "], got ", gain.shape());
}

void check_borders(const char* op, const Tensor& borders, const Tensor& at, const Tensor& q,
                   const Tensor& k, int64_t K, const Tensor& width, int64_t units) {
  const int64_t B = q.dim(0), m = q.dim(3), G = k.rank() == 4 ? k.dim(1) : 0;
  check(G > 0 && q.dim(1) % G == 0 && k.dim(0) == B && k.dim(3) == m &&
            borders.dtype() == Dtype::f64 && can_store(q.dtype(), k.dtype()) &&
            borders.shape() == Shape{B, G, K + 1, border_columns(m)},
        op, ": borders ", borders.shape(), " and keys ", k.shape(), " do not fit queries ",
        q.shape(), " and ", K, " columns");
  const int64_t limit = units > 0 ? std::numeric_limits<int32_t>::max() : k.dim(2);
  check_positions(op, "width", width, B, limit);
  check_positions(op, "position", at, B, limit);
  for (int64_t b = 0; b < B; ++b) {
    check(units <= 0 || unit_rows(width.data<int64_t>()[b], K, units) <= k.dim(2), op, ": ",
          width.data<int64_t>()[b], " keys have more units than the ", k.dim(2), " rows");
    check(at.data<int64_t>()[b] <= width.data<int64_t>()[b], op, ": sequence ", b,
          " decreases from ", at.data<int64_t>()[b], " keys to ", width.data<int64_t>()[b]);
  }
}

void check_image(const char* op, const Tensor& x) {
  check(x.defined() && x.rank() == 4, op, ": x must be an image [B, tokens, columns, channels]");
  check(x.dtype() == Dtype::f32 || x.dtype() == Dtype::f64, op, ": x is ", x.dtype(),
        ", wanted f32 or f64");
}

void check_lengths(const char* op, const Tensor& lengths, int64_t B) {
  if (!lengths.defined()) return;
  check(lengths.dtype() == Dtype::i64 && lengths.shape() == Shape{B} && lengths.is_contiguous(), op,
        ": lengths are ", lengths.dtype(), " ", lengths.shape(), ", wanted i64 [", B, "]");
}

}  // namespace brine
