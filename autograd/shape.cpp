// Ops that move elements without computing.
#include "autograd/ops.h"

namespace brine {
namespace {

Tensor dense(const Tensor& x) { return x.detach().contiguous(); }

// The strides of a packed [B, T, P, H, d] seen as [B, H, T, d], one part of P.
Tensor heads_of(const Tensor& packed, int64_t heads, int64_t part, int64_t parts) {
  const int64_t B = packed.dim(0), T = packed.dim(1), d = packed.dim(2) / (parts * heads);
  return packed.view({B, T, parts, heads, d}).select(2, part).permute({0, 2, 1, 3});
}

}  // namespace

Tensor reshape(const Tensor& x, const Shape& shape) {
  const Shape before = x.shape();
  return record("reshape", dense(x).view(shape), {x},
                [=](const Tensor& dy, Gradients& grads) { grads.set(0, dy.view(before)); });
}

Tensor permute(const Tensor& x, std::initializer_list<int> axes) {
  const std::vector<int> order(axes);
  Tensor y = x.detach().permute(order).clone();
  std::vector<int> inverse(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    inverse[size_t(x.shape().axis(order[i]))] = int(i);
  }
  return record("permute", y, {x},
                [=](const Tensor& dy, Gradients& grads) { grads.set(0, dy.permute(inverse)); });
}

Tensor slice(const Tensor& x, int axis, int64_t start, int64_t length) {
  Tensor y = x.detach().slice(axis, start, length).clone();
  return record("slice", y, {x}, [=](const Tensor& dy, Gradients& grads) {
    Tensor part = grads.accumulate(0).slice(axis, start, length);
    BRINE_CALL(part, accumulate, part, dy);
  });
}

Tensor concat_last(const Tensor& a, const Tensor& b) {
  check(a.rank() == b.rank() && a.rank() > 0 && a.dtype() == b.dtype(), "concat_last: ", a.dtype(),
        " ", a.shape(), " and ", b.dtype(), " ", b.shape(), " must have one rank and one type");
  const int64_t A = a.dim(-1), B = b.dim(-1);
  Shape shape = a.shape(), other = b.shape();
  shape[a.rank() - 1] = other[a.rank() - 1] = A + B;
  check(shape == other, "concat_last: ", a.shape(), " and ", b.shape(),
        " differ before the last axis");
  Tensor y = Tensor::empty(shape, a.dtype(), a.device());
  BRINE_CALL(y, copy, y.slice(-1, 0, A), a.detach());
  BRINE_CALL(y, copy, y.slice(-1, A, B), b.detach());
  return record("concat_last", y, {a, b}, [=](const Tensor& dy, Gradients& grads) {
    if (grads.wanted(0)) grads.set(0, dy.slice(-1, 0, A));
    if (grads.wanted(1)) grads.set(1, dy.slice(-1, A, B));
  });
}

Tensor cast(const Tensor& x, Dtype dtype) {
  check(is_float(x.dtype()) && is_float(dtype), "cast: from ", x.dtype(), " to ", dtype,
        ", wanted float types");
  if (x.dtype() == dtype) return x;
  const Dtype before = x.dtype();
  return record("cast", x.detach().to(dtype), {x},
                [=](const Tensor& dy, Gradients& grads) { grads.set(0, dy.to(before)); });
}

Tensor split_heads(const Tensor& x, int64_t heads, int64_t part, int64_t parts) {
  check(x.rank() == 3 && heads > 0 && parts > 0 && x.dim(2) % (heads * parts) == 0,
        "split_heads: ", x.shape(), " is no [B, T, ", parts, " x ", heads, " x d]");
  check(part >= 0 && part < parts, "split_heads: part ", part, " of ", parts);
  Tensor y = heads_of(dense(x), heads, part, parts).clone();  // [B, H, T, d]
  return record("split_heads", y, {x}, [=](const Tensor& dy, Gradients& grads) {
    if (parts == 1) {
      return grads.set(0, dy.permute({0, 2, 1, 3}).clone().view({dy.dim(0), dy.dim(2), -1}));
    }
    Tensor to = heads_of(grads.accumulate(0), heads, part, parts);
    BRINE_CALL(to, accumulate, to, dy);
  });
}

Tensor merge_heads(const Tensor& x) {
  check(x.rank() == 4, "merge_heads: ", x.shape(), " is no [B, H, T, d]");
  const int64_t B = x.dim(0), H = x.dim(1), T = x.dim(2), d = x.dim(3);
  Tensor y = x.detach().permute({0, 2, 1, 3}).clone().view({B, T, H * d});
  return record("merge_heads", y, {x}, [=](const Tensor& dy, Gradients& grads) {
    grads.set(0, dy.view({B, T, H, d}).permute({0, 2, 1, 3}));
  });
}

}  // namespace brine
