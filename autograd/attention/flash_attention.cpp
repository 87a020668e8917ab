// Exact attention without a T x T map: the backward pass keeps the output and two numbers per row.
#include <cmath>

#include "autograd/compute_type.h"
#include "autograd/dense/contiguous_internal.h"
#include "autograd/ops_attention.h"
#include "tensor/kernels/attention.h"
#include "tensor/mask/csr.h"
#include "tensor/meter/cost_meter.h"

namespace brine {

namespace {

// Pairs of a query and a key that it sees, in all sequences.
double pairs_of(const Visibility& visible, int64_t B, int64_t T) {
  const RowWidths widths(visible, T);
  double pairs = 0;
  for (int64_t b = 0; b < B; ++b) {
    const double L = double(widths.valid(b));
    pairs += visible.causal ? L * (L + 1) / 2 : L * L;
  }
  return pairs;
}

}  // namespace

Tensor flash_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                       const Visibility& visible) {
  check(q.rank() == 4 && q.dim(3) > 0, "flash_attention: q must be [B, H, T, d], got ", q.shape());
  const int64_t B = q.dim(0), H = q.dim(1), T = q.dim(2), d = q.dim(3);
  const int64_t G = k.rank() == 4 ? k.dim(1) : 0;
  for (const Tensor& x : {k, v}) {
    check(G >= 1 && H % G == 0 && x.shape() == Shape{B, G, T, d} && x.dtype() == q.dtype(),
          "flash_attention: q is ", q.dtype(), " ", q.shape(), ", k or v is ", x.dtype(), " ",
          x.shape());
  }
  check_visibility("flash_attention", visible, B, T);
  const ProductInput taken{product_type(q.dtype())};
  Tensor xq = taken(q.detach().contiguous()), xk = taken(k.detach().contiguous()),
         xv = taken(v.detach().contiguous());
  Visibility kept = visible;
  if (visible.lengths.defined()) kept.lengths = visible.lengths.detach().contiguous();
  Tensor y = Tensor::empty({B, T, H * d}, q.dtype(), q.device());
  Tensor lse = Tensor::empty({B, H, T}, q.dtype(), q.device());
  const double scale = 1 / std::sqrt(double(d));
  count_macs(2.0 * double(H * d) * pairs_of(kept, B, T));
  BRINE_CALL(xq, flash_attention, y, lse, xq, xk, xv, kept, scale);
  return record("flash_attention", y, {q, k, v},
                [=](const Tensor& dy, Gradients& grads) {
                  auto fresh = [&](int input) {
                    return grads.wanted(input) ? Tensor::empty(xq.shape(), dy.dtype(), dy.device())
                                               : Tensor();
                  };
                  Tensor dq = fresh(0), dk = fresh(1), dv = fresh(2);
                  BRINE_CALL(xq, flash_attention_backward, dq, dk, dv, dy, xq, xk, xv, y, lse, kept,
                             scale);
                  if (dq.defined()) grads.set(0, dq);
                  auto pass_on = [&](int input, const Tensor& shares) {
                    if (!shares.defined()) return;
                    if (G == H) return grads.set(input, shares);
                    add_groups(grads.accumulate(input), shares);
                  };
                  pass_on(1, dk);
                  pass_on(2, dv);
                },
                {xq, xk, xv, y});
}

}  // namespace brine
