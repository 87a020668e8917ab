// Attention under a mask and the mixing of its output.
#include <cmath>

#include "autograd/compute_type.h"
#include "autograd/ops_sparse.h"
#include "tensor/kernels/kernels_sparse.h"
#include "tensor/meter/cost_meter.h"

namespace brine {
namespace {

void check_alike(const char* op, const Tensor& a, const Tensor& b, const char* what) {
  check(a.shape() == b.shape() && a.dtype() == b.dtype(), op, ": ", what, " must be ", a.dtype(),
        " ", a.shape(), ", got ", b.dtype(), " ", b.shape());
}

}  // namespace

Tensor masked_softmax(const Tensor& scores, const Tensor& mask, double scale) {
  check(mask.dtype() == Dtype::u8 && mask.shape() == scores.shape(),
        "masked_softmax: the mask must be u8 ", scores.shape(), ", got ", mask.dtype(), " ",
        mask.shape());
  Tensor x = scores.contiguous(), y = Tensor::like(x);
  BRINE_CALL(x, masked_softmax, y, x, mask.contiguous(), scale);
  Tensor p = y.detach();
  return record("masked_softmax", y, {scores},
                [=](const Tensor& dy, Gradients& grads) {
                  Tensor dx = Tensor::like(p);
                  BRINE_CALL(p, softmax_backward, dx, dy, p, scale);
                  grads.set(0, dx);
                },
                {p});
}

Tensor sparse_attention(const Tensor& q, const Tensor& k, const Tensor& v, const FlatCsr& csr,
                        Tensor* probabilities) {
  check_csr("sparse_attention", csr, q, k);
  check_alike("sparse_attention", k, v, "v");
  check(q.dtype() == k.dtype(), "sparse_attention: q is ", q.dtype(), ", k is ", k.dtype());
  check(q.dim(3) > 0, "sparse_attention: heads of size 0");
  // Every entry gathers a row of K and of V, backward of Q as well: rounded once, they are half as
  // long. Not on a CPU, whose caches are near: widening costs it more than it saves. Nor for a few
  // rows (decoding), which gather less than rounding all keys would read.
  const ProductInput taken{q.device().is_cuda() ? product_type(q.dtype(), q.dim(2)) : q.dtype()};
  auto rounded = [&](const Tensor& x) { return taken(x.detach()).contiguous(); };
  Tensor whole = q.detach().contiguous(), xk = rounded(k), xv = rounded(v);
  Tensor y = Tensor::like(whole), p = Tensor::empty({csr.entries()}, q.dtype(), q.device());
  double scale = 1 / std::sqrt(double(q.dim(3)));
  BRINE_CALL(y, sparse_attention, y, p, whole, xk, xv, csr, scale);
  count_macs(2.0 * double(csr.entries()) * double(q.dim(3)));
  if (probabilities) *probabilities = p;
  const bool kept = wants_grad(q) || wants_grad(k) || wants_grad(v);
  Tensor xq = kept ? taken(whole) : whole;
  return record(
      "sparse_attention", y, {q, k, v},
      [=](const Tensor& dy, Gradients& grads) {
        auto fresh = [&](int input, const Tensor& x) {
          return grads.wanted(input) ? Tensor::empty(x.shape(), dy.dtype(), dy.device()) : Tensor();
        };
        Tensor dq = fresh(0, xq), dk = fresh(1, xk), dv = fresh(2, xv);
        BRINE_CALL(xq, sparse_attention_backward, dq, dk, dv, dy, xq, xk, xv, p, csr, scale);
        if (dq.defined()) grads.set(0, dq);
        if (dk.defined()) grads.set(1, dk);
        if (dv.defined()) grads.set(2, dv);
      },
      {xq, xk, xv, p, csr.row_pointers, csr.head_offsets, csr.columns});
}

Tensor mix_outputs(const Tensor& c, const Tensor& average, const Tensor& scalers,
                   const Visibility& visible) {
  check(c.rank() == 4, "mix_outputs: c must be [B, H, T, d], got ", c.shape());
  check_alike("mix_outputs", c, average, "average");
  int64_t B = c.dim(0), H = c.dim(1), T = c.dim(2), d = c.dim(3);
  check((scalers.shape() == Shape{B, H, T, 2}) && scalers.dtype() == c.dtype(),
        "mix_outputs: scalers must be ", c.dtype(), " ", Shape{B, H, T, 2}, ", got ",
        scalers.dtype(), " ", scalers.shape());
  check_visibility("mix_outputs", visible, B, int64_t(1) << 31);
  Tensor xc = c.detach().contiguous(), xa = average.detach().contiguous();
  Tensor xs = scalers.detach().contiguous();
  Tensor y = Tensor::empty({B, T, H * d}, c.dtype(), c.device());
  BRINE_CALL(xc, mix_outputs, y, xc, xa, xs, visible);
  return record("mix_outputs", y, {c, average, scalers},
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
            estimate.dim(0) == v.dim(0) && estimate.dim(1) == v.dim(1) &&
            estimate.dim(2) == v.dim(2),
        "estimate_average: wanted an estimate [B, H, T, K] and v [B, H, T, d], got ",
        estimate.shape(), " and ", v.shape());
  check(!visible.causal, "estimate_average: a mean over rows looks across time, causal refuses it");
  check_visibility("estimate_average", visible, v.dim(0), v.dim(2));
  Tensor xe = estimate.detach().contiguous(), xv = v.detach().contiguous(), y = Tensor::like(xv);
  BRINE_CALL(xv, estimate_average, y, xe, xv, visible);
  count_macs(double(y.numel()) * double(estimate.dim(3)));
  Tensor out = y.detach();
  return record("estimate_average", y, {estimate, v},
                [=](const Tensor& dy, Gradients& grads) {
                  Tensor de = grads.wanted(0) ? Tensor::like(xe) : Tensor();
                  Tensor dv = grads.wanted(1) ? Tensor::like(xv) : Tensor();
                  BRINE_CALL(xv, estimate_average_backward, de, dv, dy, xe, xv, out, visible);
                  if (de.defined()) grads.set(0, de);
                  if (dv.defined()) grads.set(1, dv);
                },
                {xe, xv, out});
}

}  // namespace brine
