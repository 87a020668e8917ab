// The primitives that work along axes: sums, means, maxima, running sums, repetition.
#include "autograd/primitives/broadcast_internal.h"

namespace brine {
namespace {

// The shape of x with the given axes of size 1, and without them.
struct Reduced {
  Shape kept, dropped;
};

Reduced reduced_shape(const char* op, const Tensor& x, const std::vector<int>& axes) {
  bool reduces[Shape::kMaxRank] = {};
  for (int given : axes) {
    bool& marked = reduces[axis_of(op, x, given)];
    check(!marked, op, ": axis ", given, " of ", x.shape(), " is given more than once");
    marked = true;
  }
  Reduced to;
  for (int i = 0; i < x.rank(); ++i) {
    to.kept.push_back(reduces[i] ? 1 : x.dim(i));
    if (!reduces[i]) to.dropped.push_back(x.dim(i));
  }
  return to;
}

// The reduction with the reduced axes kept.
Tensor reduced(const char* name, Reduction op, const Tensor& x, const Shape& kept) {
  check_computes(name, x);
  Tensor y = Tensor::empty(kept, x.dtype(), x.device());
  BRINE_CALL(y, reduce, y, x.detach(), op);
  return y;
}

}  // namespace

Tensor sum(const Tensor& x, const std::vector<int>& axes, bool keep_axes) {
  const auto [kept, dropped] = reduced_shape("sum", x, axes);
  Tensor y = reduced("sum", Reduction::sum, x, kept);
  return record("sum", keep_axes ? y : y.view(dropped), {x},
                [kept = kept, shape = x.shape()](const Tensor& dy, Gradients& grads) {
                  grads.set(0, broadcast_view(dy.view(kept), shape));
                });
}

Tensor mean(const Tensor& x, const std::vector<int>& axes, bool keep_axes) {
  const auto [kept, dropped] = reduced_shape("mean", x, axes);
  Tensor y = reduced("mean", Reduction::mean, x, kept);
  return record("mean", keep_axes ? y : y.view(dropped), {x},
                [kept = kept, shape = x.shape()](const Tensor& dy, Gradients& grads) {
                  const double n =
                      double(shape.numel()) / double(std::max<int64_t>(1, kept.numel()));
                  grads.set(0, broadcast_view(dy.view(kept) / n, shape));
                });
}

Tensor max(const Tensor& x, const std::vector<int>& axes, bool keep_axes) {
  const auto [kept, dropped] = reduced_shape("max", x, axes);
  check(x.numel() > 0 || kept.numel() == 0, "max: ", x.shape(),
        " has no elements along the axes to reduce");
  Tensor y = reduced("max", Reduction::max, x, kept), u = x.detach();
  return record("max", keep_axes ? y : y.view(dropped), {x},
                [=](const Tensor& dy, Gradients& grads) {
                  const Tensor largest = equal(u, y), one = Operand(1).like(u);
                  const Tensor ties = sum(where(largest, one, 0), axes, true);
                  grads.set(0, where(largest, dy.view(y.shape()) / ties, 0));
                },
                {u, y});
}

Tensor cumsum(const Tensor& x, int axis) {
  check_computes("cumsum", x);
  const int a = axis_of("cumsum", x, axis);
  Tensor y = Tensor::like(x);
  BRINE_CALL(y, cumsum, y, x.detach(), a, false);
  return record_one("cumsum", y, x, [=](const Tensor& dx, const Tensor& dy) {
    BRINE_CALL(dx, cumsum, dx, dy, a, true);
  });
}

Tensor broadcast_to(const Tensor& x, const Shape& shape) {
  bool fits = x.rank() <= shape.rank();
  for (int i = -x.rank(); fits && i < 0; ++i) {
    fits = x.dim(i) == 1 || x.dim(i) == shape[shape.rank() + i];
  }
  check(fits, "broadcast_to: ", x.shape(), " does not broadcast to ", shape);
  Tensor y = broadcast_view(x, shape).clone();
  return record("broadcast_to", y, {x}, [of_x = x.shape()](const Tensor& dy, Gradients& grads) {
    grads.set(0, sum_to(dy, of_x));
  });
}

}  // namespace brine
