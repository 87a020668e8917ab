// The output of SEA: two paths mixed by gates, and the average that the estimate weighs.
#include "autograd/ops.h"
#include "tensor/base/math.h"
#include "tensor/kernels/estimator.h"
#include "tensor/mask/csr.h"

namespace brine {

Tensor mix_outputs(const Tensor& c, const Tensor& average, const Tensor& gates,
                   const Visibility& visible) {
  check(c.rank() == 4, "mix_outputs: c must be [B, H, T, d], got ", c.shape());
  int64_t B = c.dim(0), H = c.dim(1), T = c.dim(2), d = c.dim(3);
  check(average.rank() == 4 && average.dtype() == c.dtype() && average.dim(0) == B &&
            average.dim(1) > 0 && H % average.dim(1) == 0 && average.dim(2) == T &&
            average.dim(3) == d,
        "mix_outputs: average must be ", c.dtype(), " [", B, ", ", H, " or a divisor, ", T, ", ", d,
        "], got ", average.dtype(), " ", average.shape());
  check((gates.shape() == Shape{B, H, T, 2}) && gates.dtype() == c.dtype(),
        "mix_outputs: gates must be ", c.dtype(), " ", Shape{B, H, T, 2}, ", got ", gates.dtype(),
        " ", gates.shape());
  check_visibility("mix_outputs", visible, B, int64_t(1) << 31);
  Tensor xc = c.detach().contiguous(), xa = average.detach().contiguous();
  Tensor xs = gates.detach().contiguous();
  Tensor y = Tensor::empty({B, T, H * d}, c.dtype(), c.device());
  BRINE_CALL(xc, mix_outputs, y, xc, xa, xs, visible);
  return record("mix_outputs", y, {c, average, gates},
                [=](const Tensor& dy, Gradients& grads) {
                  Tensor dc = Tensor::like(xc), da = Tensor::like(xa), ds = Tensor::like(xs);
                  BRINE_CALL(xc, mix_outputs_backward, dc, da, ds, dy, xc, xa, xs, visible);
                  grads.set(0, dc);
                  grads.set(1, da);
                  grads.set(2, ds);
                },
                {xc, xa, xs});
}

Tensor estimate_average(const Tensor& estimate, const Tensor& v, const Visibility& visible) {
  check(estimate.rank() == 4 && v.rank() == 4 && estimate.dtype() == v.dtype() &&
            estimate.dim(0) == v.dim(0) && v.dim(1) > 0 && estimate.dim(1) % v.dim(1) == 0 &&
            estimate.dim(2) == v.dim(2),
        "estimate_average: wanted an estimate [B, H, T, K] and v [B, G, T, d], got ",
        estimate.shape(), " and ", v.shape());
  check(!visible.causal,
        "estimate_average: a mean over rows depends on later positions, so causal is not allowed");
  check_visibility("estimate_average", visible, v.dim(0), v.dim(2));
  const int64_t B = v.dim(0), H = estimate.dim(1), T = v.dim(2), K = estimate.dim(3);
  // The first key of each column, and the number of keys.
  const Tensor begins = Tensor::filled({B, K + 1, 1}, Dtype::i64, v.device(), [&](const Tensor& y) {
    const RowWidths widths(visible, T);
    for (int64_t i = 0; i < y.numel(); ++i) {
      const int64_t b = i / (K + 1);
      y.data<int64_t>()[i] = math::column_begin(i % (K + 1), widths.valid(b), K);
    }
  });
  const Tensor key = arange(T, Dtype::i64, v.device()),
               one = Tensor::full({1}, 1, v.dtype(), v.device());
  const Tensor rows = less(reshape(key, {T, 1}), reshape(begins.slice(1, K, 1), {B, 1, 1, 1}));
  const Tensor owned = logical_and(greater_equal(key, begins.slice(1, 0, K)),
                                   less(key, begins.slice(1, 1, K)));  // [B, K, T]
  const Tensor shares = sum(where(rows, estimate, 0), {2});            // [B, H, K]
  const Tensor weights = matmul(shares, where(owned, one, 0));
  const Tensor total = sum(weights, {2}, true);  // 0 of a sequence without keys
  const Tensor share_of_key = weights / where(greater(total, 0), total, 1);
  const Tensor mean = group_matmul(reshape(share_of_key, {B, H, 1, T}), where(rows, v, 0), false);
  return where(rows, mean, 0);
}

}  // namespace brine
