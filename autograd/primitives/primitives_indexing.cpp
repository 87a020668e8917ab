// The primitives that move elements: gather, scatter_add, concat, arange.
#include "autograd/primitives/broadcast_internal.h"
#include "tensor/kernels/dense.h"

namespace brine {
namespace {

// Throws for an index outside the axis of x. Reads the indices on the CPU; those of the meta device
// have no values.
void check_indices(const char* op, const Tensor& index, const Tensor& x, int axis) {
  if (index.device().is_meta()) return;
  const Tensor indices = index.to(Device{}).contiguous();
  const int64_t* values = indices.data<int64_t>();
  for (int64_t i = 0; i < indices.numel(); ++i) {
    check(values[i] >= 0 && values[i] < x.dim(axis), op, ": index ", values[i], " at position ", i,
          " is outside axis ", axis, " of ", x.shape());
  }
}

// The index in i64 on the device of x, with the shape that gather() returns.
Tensor index_view(const char* op, const Tensor& x, int axis, const Tensor& index) {
  check(index.dtype() == Dtype::i32 || index.dtype() == Dtype::i64, op, ": the index is ",
        index.dtype(), ", wanted i32 or i64");
  check(index.rank() == x.rank(), op, ": the index ", index.shape(), " must have the rank of ",
        x.shape());
  Shape shape = x.shape();
  shape[axis] = index.dim(axis);
  for (int i = 0; i < x.rank(); ++i) {
    check(i == axis || index.dim(i) == 1 || index.dim(i) == x.dim(i), op, ": the index ",
          index.shape(), " does not broadcast to ", x.shape(), " on axis ", i);
  }
  const Tensor indices = index.detach().to(Dtype::i64);
  check_indices(op, indices, x, axis);
  return broadcast_view(indices.to(x.device()), shape);
}

Tensor gathered(const Tensor& x, int axis, const Tensor& indices) {
  Tensor y = Tensor::empty(indices.shape(), x.dtype(), x.device());
  BRINE_CALL(y, gather, y, x.detach(), indices, axis);
  return y;
}

}  // namespace

Tensor gather(const Tensor& x, int axis, const Tensor& index) {
  const int a = axis_of("gather", x, axis);
  const Tensor indices = index_view("gather", x, a, index);
  return record("gather", gathered(x, a, indices), {x},
                [=](const Tensor& dy, Gradients& grads) {
                  Tensor dx = grads.accumulate(0);
                  BRINE_CALL(dx, scatter_add, dx, dy, indices, a);
                },
                {indices});
}

Tensor concat(const std::vector<Tensor>& parts, int axis) {
  check(!parts.empty(), "concat: no tensors given");
  const int a = axis_of("concat", parts[0], axis);
  Shape shape = parts[0].shape();
  shape[a] = 0;
  std::vector<int64_t> begins;
  for (const Tensor& part : parts) {
    Shape expected = parts[0].shape();
    if (part.rank() == shape.rank()) expected[a] = part.dim(a);
    check(part.shape() == expected && part.dtype() == parts[0].dtype() &&
              part.device() == parts[0].device(),
          "concat: ", part.dtype(), " ", part.shape(), " and ", parts[0].dtype(), " ",
          parts[0].shape(), " must have one type, one device and, but for axis ", a, ", one shape");
    begins.push_back(shape[a]);
    shape[a] += part.dim(a);
  }
  Tensor y = Tensor::empty(shape, parts[0].dtype(), parts[0].device());
  std::vector<int64_t> lengths;
  for (size_t i = 0; i < parts.size(); ++i) {
    lengths.push_back(parts[i].dim(a));
    BRINE_CALL(y, copy, y.slice(a, begins[i], lengths[i]), parts[i].detach());
  }
  return record("concat", y, parts, [=](const Tensor& dy, Gradients& grads) {
    for (size_t i = 0; i < begins.size(); ++i) {
      if (grads.wanted(int(i))) grads.set(int(i), dy.slice(a, begins[i], lengths[i]));
    }
  });
}

Tensor arange(int64_t n, Dtype dtype, Device device) {
  check(n >= 0 && (dtype == Dtype::f32 || dtype == Dtype::f64 || dtype == Dtype::i32 ||
                   dtype == Dtype::i64),
        "arange: got ", n, " numbers of ", dtype, ", wanted 0 or more of f32, f64, i32 or i64");
  std::vector<int64_t> numbers(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) numbers[size_t(i)] = i;
  return Tensor::from(numbers, {n}).to(dtype).to(device);
}

}  // namespace brine
