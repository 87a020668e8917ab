// Attention over lists of key blocks.
#include <cmath>

#include "autograd/compute_type.h"
#include "autograd/ops_attention.h"
#include "autograd/step_checks.h"
#include "tensor/base/stored.h"
#include "tensor/kernels/blocks.h"
#include "tensor/mask/csr.h"
#include "tensor/meter/cost_meter.h"

namespace brine {
namespace {

// Number of keys that all rows read, at most `kept` for each row, computed from the sizes alone.
// The rows of q are those of the tiles of the mask, one tile after another.
double block_pairs(const Tensor& q, const BlockMask& mask, const Visibility& visible, int64_t T,
                   int64_t kept) {
  const RowWidths widths(visible, T);
  double pairs = 0;
  for (int64_t b = 0; b < q.dim(0); ++b) {
    for (int64_t r = 0; r < q.dim(2); ++r) {
      const int64_t n = r / mask.tile;
      const int64_t t =
          (mask.tiles.defined() ? mask.tiles.data<int32_t>()[n] : n) * mask.tile + r % mask.tile;
      pairs += double(std::min(widths(b, t), kept));
    }
  }
  return pairs;
}

}  // namespace

Tensor block_attention(const Tensor& q, const Tensor& k, const Tensor& v, const BlockMask& mask,
                       const Visibility& visible, int64_t kept) {
  const char* op = "block_attention";
  check(q.rank() == 4 && q.dim(3) > 0 && k.rank() == 4, op, ": q must be [B, H, rows, d], got ",
        q.shape());
  const int64_t B = q.dim(0), H = q.dim(1), d = q.dim(3), G = k.dim(1), T = k.dim(2);
  check(G >= 1 && H % G == 0 && k.shape() == Shape{B, G, T, d} && v.shape() == k.shape() &&
            k.dtype() == q.dtype() && v.dtype() == q.dtype(),
        op, ": q is ", q.dtype(), " ", q.shape(), ", k ", k.dtype(), " ", k.shape(), ", v ",
        v.dtype(), " ", v.shape());
  check((mask.counts.shape() == Shape{B, G, (q.dim(2) + mask.tile - 1) / mask.tile}), op, ": ",
        q.dim(2), " rows do not fit a mask of ", mask.counts.shape(), " tiles of ", mask.tile);
  check_visibility(op, visible, B, T);
  const ProductInput taken{product_type(q.dtype())};
  const Tensor xq = taken(q.detach().contiguous()), xk = taken(k.detach().contiguous()),
               xv = taken(v.detach().contiguous());
  Visibility seen = visible;
  if (visible.lengths.defined()) seen.lengths = visible.lengths.detach().contiguous();
  const Tensor y = Tensor::empty(q.shape(), q.dtype(), q.device());
  const Tensor lse = Tensor::empty({B, H, q.dim(2)}, q.dtype(), q.device());
  const double scale = 1 / std::sqrt(double(d));
  count_macs(2.0 * double(H * d) * block_pairs(q, mask, seen, T, kept));
  BRINE_CALL(xq, block_attention, y, lse, xq, xk, xv, mask, seen, scale);
  return record(op, y, {q, k, v},
                [=](const Tensor& dy, Gradients& grads) {
                  auto fresh = [&](int input, const Tensor& x) {
                    return grads.wanted(input) ? Tensor::empty(x.shape(), dy.dtype(), dy.device())
                                               : Tensor();
                  };
                  const Tensor dq = fresh(0, xq), dk = fresh(1, xk), dv = fresh(2, xv);
                  BRINE_CALL(xq, block_attention_backward, dq, dk, dv, dy, xq, xk, xv, y, lse, mask,
                             seen, scale);
                  if (dq.defined()) grads.set(0, dq);
                  if (dk.defined()) grads.set(1, dk);
                  if (dv.defined()) grads.set(2, dv);
                },
                {xq, xk, xv, y});
}

Tensor block_attention_step(const Tensor& q, const Tensor& k, const Tensor& v,
                            const BlockMask& mask, const Tensor& width) {
  const char* op = "block_attention_step";
  check(k.rank() == 4 && k.dim(1) >= 1 && v.shape() == k.shape(), op,
        ": k and v must be [B, G, S, d], got ", k.shape(), " and ", v.shape());
  check(q.rank() == 4 && q.dim(0) == k.dim(0) && q.dim(1) % k.dim(1) == 0 && q.dim(2) == 1 &&
            q.dim(3) == k.dim(3) && can_store(q.dtype(), k.dtype()) && v.dtype() == k.dtype(),
        op, ": q must be [", k.dim(0), ", H, 1, ", k.dim(3), "] for keys of ", k.dtype(), ", got ",
        q.dtype(), " ", q.shape(), " and values of ", v.dtype());
  check_positions(op, "width", width, k.dim(0), k.dim(2));
  const Tensor y = Tensor::like(q);
  BRINE_CALL(y, block_attention_step, y, q.detach().contiguous(), k, v, mask, width,
             1 / std::sqrt(double(k.dim(3))));
  return y;
}

}  // namespace brine
