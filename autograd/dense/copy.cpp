// Ops that move elements without arithmetic: shapes, slices, heads, rows, types.
#include "autograd/dense/contiguous_internal.h"
#include "autograd/primitives/broadcast_internal.h"
#include "tensor/kernels/dense.h"

namespace brine {
namespace {

// Heads first, first + 1... of x [B, T, of d] viewed as [B, heads, T, d].
Tensor heads_of(const Tensor& x, int64_t heads, int64_t first, int64_t of) {
  const int64_t B = x.dim(0), T = x.dim(1), d = x.dim(2) / of;
  return x.view({B, T, of, d}).slice(2, first, heads).permute({0, 2, 1, 3});
}

int64_t skipped(int64_t rows, int64_t step) { return (rows + step - 1) / step; }

// Rows 0, step, 2 step... of x [..., T, C], which is contiguous.
Tensor nth_rows(const Tensor& x, int64_t step) {
  Tensor rows = x.view({-1, x.dim(-2), x.dim(-1)});
  return rows.as_strided({rows.dim(0), skipped(rows.dim(1), step), rows.dim(2)},
                         {rows.stride(0), step * rows.stride(1), 1});
}

void check_rows(const char* op, const Tensor& x, int64_t step) {
  check(x.rank() == 4 && x.numel() > 0, op, ": x must be [B, H, T, C], got ", x.shape());
  check(step >= 1, op, ": step is ", step, ", must be at least 1");
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

Tensor split_heads(const Tensor& x, int64_t heads, int64_t first, int64_t of) {
  if (of == 0) of = heads;
  check(x.rank() == 3 && heads > 0 && of > 0 && x.dim(2) % of == 0, "split_heads: ", x.shape(),
        " is not [B, T, ", of, " x d]");
  check(first >= 0 && first + heads <= of, "split_heads: heads ", first, " to ", first + heads - 1,
        " of ", of);
  Tensor y = heads_of(dense(x), heads, first, of).clone();  // [B, H, T, d]
  return record("split_heads", y, {x}, [=](const Tensor& dy, Gradients& grads) {
    if (heads == of) {
      return grads.set(0, dy.permute({0, 2, 1, 3}).clone().view({dy.dim(0), dy.dim(2), -1}));
    }
    Tensor to = heads_of(grads.accumulate(0), heads, first, of);
    BRINE_CALL(to, accumulate, to, dy);
  });
}

Tensor merge_heads(const Tensor& x) {
  check(x.rank() == 4, "merge_heads: ", x.shape(), " is not [B, H, T, d]");
  const int64_t B = x.dim(0), H = x.dim(1), T = x.dim(2), d = x.dim(3);
  Tensor y = x.detach().permute({0, 2, 1, 3}).clone().view({B, T, H * d});
  return record("merge_heads", y, {x}, [=](const Tensor& dy, Gradients& grads) {
    grads.set(0, dy.view({B, T, H, d}).permute({0, 2, 1, 3}));
  });
}

Tensor every_nth_row(const Tensor& x, int64_t step) {
  check_rows("every_nth_row", x, step);
  const Shape shape = x.shape();
  Tensor y =
      Tensor::empty({shape[0], shape[1], skipped(shape[2], step), shape[3]}, x.dtype(), x.device());
  BRINE_CALL(y, copy, y.view({-1, y.dim(2), y.dim(3)}), nth_rows(x.detach().contiguous(), step));
  return record("every_nth_row", y, {x}, [=](const Tensor& dy, Gradients& grads) {
    Tensor dx = Tensor::zeros(shape, dy.dtype(), dy.device());
    BRINE_CALL(dx, copy, nth_rows(dx, step), dy.view({-1, dy.dim(2), dy.dim(3)}));
    grads.set(0, dx);
  });
}

Tensor repeat_rows(const Tensor& x, int64_t step, int64_t rows) {
  check_rows("repeat_rows", x, step);
  check(rows > 0 && skipped(rows, step) == x.dim(2), "repeat_rows: ", x.shape(), " does not make ",
        rows, " rows by steps of ", step);
  step = std::min(step, rows);
  const int64_t B = x.dim(0), H = x.dim(1), n = x.dim(2), C = x.dim(3);
  const Tensor repeated = broadcast_to(reshape(x, {B, H, n, 1, C}), {B, H, n, step, C});
  return slice(reshape(repeated, {B, H, n * step, C}), 2, 0, rows);
}

void copy_into(const Tensor& to, const Tensor& from) { assign(to, from); }

void fill(const Tensor& to, double value) { BRINE_CALL(to, fill, to, value); }

Tensor repeat_heads(const Tensor& x, int64_t times) {
  check(x.rank() == 4 && times >= 1, "repeat_heads: ", x.shape(), " is not [B, G, T, d], or ",
        times, " times");
  if (times == 1) return x;
  const int64_t B = x.dim(0), G = x.dim(1), row = x.dim(2) * x.dim(3);
  Tensor y = broadcast_view(dense(x).view({B, G, 1, row}), {B, G, times, row})
                 .clone()
                 .view({B, G * times, x.dim(2), x.dim(3)});
  return record("repeat_heads", y, {x},
                [](const Tensor& dy, Gradients& grads) { add_groups(grads.accumulate(0), dy); });
}

void add_groups(const Tensor& to, const Tensor& heads) {
  const int64_t B = to.dim(0), G = to.dim(1), times = heads.dim(1) / G, row = to.dim(2) * to.dim(3);
  Tensor sums = to.view({B, G, row});
  for (int64_t i = 0; i < times; ++i) {
    BRINE_CALL(sums, accumulate, sums, heads.view({B, G, times, row}).select(2, i));
  }
}

}  // namespace brine
