// The prior of a column: the share of a row's linear attention that its keys have.
#include <algorithm>
#include <limits>

#include "autograd/ops.h"
#include "autograd/step_checks.h"
#include "tensor/kernels/estimator.h"
#include "tensor/mask/csr.h"
#include "tensor/meter/cost_meter.h"

namespace brine {

Tensor performer_prior(const Tensor& scores, const Tensor& gain, const Tensor& phi_q,
                       const Tensor& phi_k, const Visibility& visible, ColumnGrid grid,
                       double floor) {
  const char* op = "performer_prior";
  check_columns(op, "phi_q and phi_k", phi_q, phi_k, visible, grid);
  check_scores(op, scores, gain, phi_q, grid.step);
  check(floor >= 0 && floor < 1, op, ": floor is ", floor, ", must be a share");
  const Tensor q = phi_q.detach().contiguous(), k = phi_k.detach().contiguous();
  const Tensor x = scores.detach().contiguous(), g = gain.detach().contiguous();
  Tensor y = Tensor::like(x);
  BRINE_CALL(y, performer_prior, y, x, g, q, k, visible, grid, floor);
  count_macs(double(y.numel()) * double(q.dim(3)));
  return record(op, y, {scores, gain, phi_q, phi_k},
                [=](const Tensor& dy, Gradients& grads) {
                  grads.set(0, dy);
                  if (!grads.wanted(1) && !grads.wanted(2) && !grads.wanted(3)) return;
                  Tensor dq = Tensor::like(q), dk = Tensor::like(k);
                  Tensor dg = grads.wanted(1) ? grads.accumulate(1) : Tensor::zeros_like(g);
                  BRINE_CALL(q, performer_prior_backward, dg, dq, dk, dy, g, q, k, visible, grid,
                             floor);
                  grads.set(2, dq);
                  grads.set(3, dk);
                },
                {q, k, g});
}

Tensor performer_prior_step(const Tensor& borders, const Tensor& at, const Tensor& scores,
                            const Tensor& gain, const Tensor& phi_q, const Tensor& phi_k,
                            const Tensor& width, double floor, int64_t units) {
  const char* op = "performer_prior_step";
  check_row(op, scores, phi_q, scores.dim(-1));
  check_borders(op, borders, at, phi_q, phi_k, scores.dim(-1), width, units);
  check(gain.shape() == Shape{phi_q.dim(1)}, op, ": gain must be [", phi_q.dim(1), "], got ",
        gain.shape());
  Tensor y = Tensor::like(scores);
  BRINE_CALL(y, performer_prior_step, y, borders, at, scores.detach().contiguous(),
             gain.detach().contiguous(), phi_q.detach().contiguous(), phi_k, width, floor, units);
  return y;
}

int64_t unit_rows(int64_t w, int64_t K, int64_t units) {
  const int64_t unit = math::unit_of_sums(w, K, units);
  return (w + unit - 1) / unit;
}

void append_to_units(const Tensor& rows, const Tensor& row, const Tensor& at, int64_t K,
                     int64_t units) {
  const char* op = "append_to_units";
  check_row(op, row, rows, rows.dim(3));
  check(K >= 1 && units >= 0, op, ": K is ", K, ", units are ", units);
  check_positions(op, "position", at, rows.dim(0), std::numeric_limits<int32_t>::max());
  for (int64_t b = 0; b < rows.dim(0); ++b) {
    const int64_t keys = at.data<int64_t>()[b];
    const int64_t needed = std::max(unit_rows(keys, K, units), unit_rows(keys + 1, K, units));
    check(needed <= rows.dim(2), op, ": key ", keys, " of sequence ", b, " needs ", needed,
          " rows, there are ", rows.dim(2));
    const int64_t unit = math::unit_of_sums(keys + 1, K, units);
    const Tensor sums = rows.select(0, b);  // [G, R, m]
    auto some = [&](int64_t first, int64_t count) {
      return sums.slice(1, first, count).to(row.dtype()).contiguous();
    };
    if (unit > math::unit_of_sums(keys, K, units)) {  // pairs of rows become one
      const int64_t made = (2 * keys + unit - 1) / unit, pairs = made / 2;
      const Tensor both = some(0, 2 * pairs).view({rows.dim(1), pairs, 2, rows.dim(3)});
      copy_into(sums.slice(1, 0, pairs), sum(both, {2}));
      if (made % 2) copy_into(sums.slice(1, pairs, 1), some(made - 1, 1));
    }
    const Tensor added = row.detach().select(0, b).contiguous(), to = sums.slice(1, keys / unit, 1);
    copy_into(to, keys % unit ? add(some(keys / unit, 1), added) : added);
  }
}

Tensor sum_units(const Tensor& x, const Tensor& lengths, const Tensor& units, int64_t rows,
                 Dtype type) {
  const char* op = "sum_units";
  check(x.rank() == 4 && rows >= 0, op, ": wanted x [B, G, T, m] and rows, got ", x.shape(),
        " and ", rows);
  check(type == Dtype::f64 || type == x.dtype(), op, ": sums of ", x.dtype(), " cannot be ", type);
  check_positions(op, "length", lengths, x.dim(0), x.dim(2));
  check_positions(op, "unit", units, x.dim(0), std::numeric_limits<int64_t>::max());
  for (int64_t b = 0; b < x.dim(0); ++b) {
    check(units.data<int64_t>()[b] >= 1, op, ": unit ", units.data<int64_t>()[b], " of sequence ",
          b, " must be at least 1");
  }
  const int64_t G = x.dim(1), m = x.dim(3);
  const Tensor y = Tensor::zeros({x.dim(0), G, rows, m}, type, x.device());
  for (int64_t b = 0; b < x.dim(0); ++b) {
    const int64_t unit = units.data<int64_t>()[b], length = lengths.data<int64_t>()[b];
    const int64_t whole = std::min(rows, length / unit),
                  last = std::min(unit, length - whole * unit);
    // The units from `row` on, `count` of `keys` keys each.
    auto put = [&](int64_t row, int64_t count, int64_t keys) {
      if (row + count > rows || count * keys == 0) return;
      const Tensor part = x.detach().select(0, b).slice(1, row * unit, count * keys);
      copy_into(y.select(0, b).slice(1, row, count),
                sum(part.to(type).contiguous().view({G, count, keys, m}), {2}));
    };
    put(0, whole, unit);
    put(whole, 1, last);
  }
  return y;
}

}  // namespace brine
