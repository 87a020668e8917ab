// Sums, and sums of products and of squared distances.
#include "autograd/dense/contiguous_internal.h"
#include "autograd/ops.h"
#include "tensor/kernels/dense.h"

namespace brine {
namespace {

// g, repeated along every axis whose stride is 0, copied into new memory.
Tensor spread(const Tensor& g, const Shape& shape, const Shape& strides) {
  Tensor dx = Tensor::empty(shape, g.dtype(), g.device());
  BRINE_CALL(dx, copy, dx, g.as_strided(shape, strides));
  return dx;
}

}  // namespace

Tensor sum(const Tensor& x) {
  Tensor y = Tensor::empty({1}, x.dtype(), x.device());
  BRINE_CALL(y, sum_all, y, dense(x));
  const Shape shape = x.shape();
  return record("sum", y, {x}, [=](const Tensor& dy, Gradients& grads) {
    grads.set(0, spread(dy, shape, Shape(std::vector<int64_t>(size_t(shape.rank()), 0))));
  });
}

Tensor dot(const Tensor& a, const Tensor& b) {
  check(a.shape() == b.shape() && a.dtype() == b.dtype(), "dot: ", a.dtype(), " ", a.shape(),
        " and ", b.dtype(), " ", b.shape(), " must have one shape and one type");
  return sum(mul(a, b));
}

Tensor squared_distance(const Tensor& a, const Tensor& b, const Tensor& weight) {
  check(a.shape() == b.shape() && a.dtype() == b.dtype(), "squared_distance: ", a.dtype(), " ",
        a.shape(), " and ", b.dtype(), " ", b.shape(), " must have one shape and one type");
  check(a.rank() >= 1 && weight.numel() == a.rows() && weight.dtype() == a.dtype(),
        "squared_distance: weight ", weight.dtype(), " ", weight.shape(), " must be ", a.dtype(),
        " with one element for each row of ", a.shape());
  Shape of_rows = a.shape();
  of_rows[a.rank() - 1] = 1;
  const Tensor u = dense(a), v = dense(b), w = dense(weight).view(of_rows);
  auto gap = [=](const Tensor& factor) { return where(not_equal(w, 0), (u - v) * factor, 0); };
  Tensor y = dot(gap(Tensor::full({1}, 1, w.dtype(), w.device())), gap(w));
  return record("squared_distance", y, {a, b},
                [=](const Tensor& dy, Gradients& grads) {
                  const Tensor g = gap(w * dy * 2.0);
                  grads.set(0, g);
                  if (grads.wanted(1)) grads.set(1, -g);
                },
                {u, v, w});
}

void add_sum_of_rows(const Tensor& y, const Tensor& x) { BRINE_CALL(y, sum_rows, y, x); }

Tensor square_sum(const Tensor& x) {
  Tensor y = Tensor::empty({1}, Dtype::f64, x.device());
  BRINE_CALL(x, square_sum, y, dense(x));
  return y;
}

int64_t count_nonfinite(const Tensor& x) {
  Tensor n = Tensor::empty({1}, Dtype::i64, x.device());
  BRINE_CALL(x, count_nonfinite, n, dense(x));
  return n.to(Device{}).data<int64_t>()[0];
}

}  // namespace brine
