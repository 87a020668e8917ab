// Attention of one new query per sequence over cached keys and values, and the ops on the caches.
#include <cmath>

#include "autograd/ops_attention.h"
#include "autograd/step_checks.h"
#include "tensor/base/stored.h"
#include "tensor/kernels/attention.h"

namespace brine {

void append_row(const Tensor& cache, const Tensor& row, const Tensor& at) {
  check_row("append_row", row, cache, cache.dim(3));
  check_positions("append_row", "position", at, cache.dim(0), cache.dim(2) - 1);
  BRINE_CALL(cache, append_row, cache, row.detach().contiguous(), at);
}

Tensor cached_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& first,
                        const Tensor& last) {
  const char* op = "cached_attention";
  check(k.rank() == 4 && k.dim(1) >= 1 && v.shape() == k.shape(), op,
        ": k and v must be [B, G, S, d], got ", k.shape(), " and ", v.shape());
  check(q.rank() == 4 && q.dim(1) % k.dim(1) == 0, op, ": q ", q.shape(),
        " must have a multiple of ", k.dim(1), " heads");
  check(q.dim(0) == k.dim(0) && q.dim(2) == 1 && q.dim(3) == k.dim(3) &&
            can_store(q.dtype(), k.dtype()) && v.dtype() == k.dtype(),
        op, ": q must be [", k.dim(0), ", H, 1, ", k.dim(3), "] for keys of ", k.dtype(), ", got ",
        q.dtype(), " ", q.shape(), " and values of ", v.dtype());
  check_positions(op, "first", first, k.dim(0), k.dim(2));
  check_positions(op, "last", last, k.dim(0), k.dim(2));
  Tensor y = Tensor::like(q);
  BRINE_CALL(y, cached_attention, y, q.detach().contiguous(), k, v, first, last,
             1 / std::sqrt(double(k.dim(3))));
  return y;
}

}  // namespace brine
