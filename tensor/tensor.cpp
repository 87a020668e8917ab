// Handles, views and storage.
#include "tensor/tensor.h"

#include <cstring>

#include "tensor/device/allocator.h"

namespace brine {

Storage::Storage(size_t size, Device where)
    : bytes(where.is_meta() ? nullptr : allocate(size, where)), size(size), device(where) {}

Storage::Storage(void* bytes, size_t size, Device where, std::shared_ptr<void> owner)
    : bytes(bytes), size(size), device(where), foreign(true), owner_(std::move(owner)) {}

Storage::~Storage() {
  if (!foreign && !device.is_meta()) release(bytes, size, device);
}

Shape contiguous_strides(const Shape& shape) {
  Shape strides = shape;
  int64_t step = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= shape[i];
  }
  return strides;
}

namespace {

// Bytes of a contiguous tensor; throws when the shape is negative or too large.
size_t checked_bytes(const Shape& shape, Dtype dtype) {
  int64_t n = 1;
  for (int64_t s : shape) {
    check(s >= 0, "Tensor: negative size in ", shape);
    check(!__builtin_mul_overflow(n, s, &n), "Tensor: ", shape, " is too large");
  }
  int64_t bytes = 0;
  check(!__builtin_mul_overflow(n, int64_t(item_size(dtype)), &bytes), "Tensor: ", shape,
        " is too large");
  return size_t(bytes);
}

}  // namespace

Tensor Tensor::over(std::shared_ptr<Storage> storage, const Shape& shape, Dtype dtype) {
  Tensor t;
  t.impl_ = std::make_shared<Impl>();
  t.impl_->shape = shape;
  t.impl_->strides = contiguous_strides(shape);
  t.impl_->dtype = dtype;
  t.impl_->storage = std::move(storage);
  return t;
}

Tensor Tensor::empty(const Shape& shape, Dtype dtype, Device device) {
  return over(std::make_shared<Storage>(checked_bytes(shape, dtype), device), shape, dtype);
}

Tensor Tensor::from_memory(void* data, const Shape& shape, Dtype dtype, std::shared_ptr<void> owner,
                           Device device) {
  const size_t bytes = checked_bytes(shape, dtype);
  check(!device.is_meta(), "Tensor::from_memory: the meta device has no memory");
  check(data || bytes == 0, "Tensor::from_memory: no memory for ", shape);
  check(reinterpret_cast<uintptr_t>(data) % item_size(dtype) == 0, "Tensor::from_memory: ", data,
        " is not aligned to the ", item_size(dtype), " bytes of ", dtype);
  return over(std::make_shared<Storage>(data, bytes, device, std::move(owner)), shape, dtype);
}

bool Tensor::is_contiguous() const {
  int64_t step = 1;
  for (int i = rank() - 1; i >= 0; --i) {
    if (impl_->shape[i] != 1 && impl_->strides[i] != step) return false;
    step *= impl_->shape[i];
  }
  return true;
}

void Tensor::refuse_values(const char* op) {
  throw Error(join(op, ": a tensor on the meta device has no values"));
}

double Tensor::item() const {
  check(numel() == 1, "item: a tensor of shape ", shape(), " does not have exactly one element");
  if (device().is_meta()) refuse_values("item");
  return to_vector()[0];
}

std::vector<double> Tensor::to_vector() const {
  if (device().is_meta()) refuse_values("to_vector");
  Tensor c = detach().to(Dtype::f64).contiguous().to(Device{});
  return {c.data<double>(), c.data<double>() + c.numel()};
}

Tensor Tensor::restride(const Shape& shape, const Shape& strides, size_t offset,
                        const char* op) const {
  check(impl_->node == nullptr, op,
        ": this tensor is on the tape; use the op of autograd/ops.h or detach() first");
  Tensor t;
  t.impl_ = std::make_shared<Impl>(*impl_);
  t.impl_->shape = shape;
  t.impl_->strides = strides;
  t.impl_->offset = offset;
  return t;
}

Tensor Tensor::view(const Shape& wanted) const {
  check(is_contiguous(), "view: a tensor with strides ", strides(), " is not contiguous");
  Shape shape = wanted;
  int open = -1;
  int64_t known = 1;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] == -1) {
      check(open < 0, "view: two sizes of -1 in ", wanted);
      open = i;
    } else {
      known *= shape[i];
    }
  }
  if (open >= 0) {
    check(known > 0 && numel() % known == 0, "view: ", this->shape(), " does not fit ", wanted);
    shape[open] = numel() / known;
  }
  check(shape.numel() == numel(), "view: ", this->shape(), " does not fit ", wanted);
  return restride(shape, contiguous_strides(shape), impl_->offset, "view");
}

Tensor Tensor::permute(const std::vector<int>& axes) const {
  check(int(axes.size()) == rank(), "permute: ", axes.size(), " axes for ", shape());
  Shape shape, strides;
  unsigned seen = 0;
  for (int a : axes) {
    int axis = this->shape().axis(a);
    seen |= 1u << axis;
    shape.push_back(impl_->shape[axis]);
    strides.push_back(impl_->strides[axis]);
  }
  check(seen + 1 == 1u << rank(), "permute: the axes are not a permutation for ", this->shape());
  return restride(shape, strides, impl_->offset, "permute");
}

Tensor Tensor::permute(std::initializer_list<int> axes) const {
  return permute(std::vector<int>(axes));
}

Tensor Tensor::transpose(int a, int b) const {
  std::vector<int> axes(size_t(rank()), 0);
  for (int i = 0; i < rank(); ++i) axes[size_t(i)] = i;
  std::swap(axes[size_t(shape().axis(a))], axes[size_t(shape().axis(b))]);
  return permute(axes);
}

Tensor Tensor::slice(int axis, int64_t start, int64_t length) const {
  int a = shape().axis(axis);
  check(start >= 0 && length >= 0 && start + length <= impl_->shape[a], "slice: [", start, ", ",
        start + length, ") is outside axis ", axis, " of ", shape());
  Shape sizes = shape();
  sizes[a] = length;
  size_t offset = impl_->offset + size_t(start * impl_->strides[a]) * item_size(dtype());
  return restride(sizes, strides(), offset, "slice");
}

Tensor Tensor::select(int axis, int64_t index) const {
  int a = shape().axis(axis);
  Tensor one = slice(axis, index, 1);
  Shape sizes, steps;
  for (int i = 0; i < rank(); ++i) {
    if (i == a) continue;
    sizes.push_back(one.shape()[i]);
    steps.push_back(one.strides()[i]);
  }
  return one.restride(sizes, steps, one.impl_->offset, "select");
}

Tensor Tensor::as_strided(const Shape& shape, const Shape& strides, int64_t offset) const {
  check(shape.rank() == strides.rank(), "as_strided: ", shape, " and ", strides, " differ in rank");
  int64_t last = offset;
  for (int i = 0; i < shape.rank(); ++i) {
    check(strides[i] >= 0 && shape[i] >= 0, "as_strided: negative size or stride");
    if (shape[i] > 0) last += (shape[i] - 1) * strides[i];
  }
  size_t begin = impl_->offset + size_t(offset) * item_size(dtype());
  check(offset >= 0 &&
            (shape.numel() == 0 ||
             impl_->offset + size_t(last + 1) * item_size(dtype()) <= impl_->storage->size),
        "as_strided: ", shape, " with strides ", strides, " exceeds the storage");
  return restride(shape, strides, begin, "as_strided");
}

Tensor Tensor::contiguous() const {
  if (is_contiguous()) return *this;
  check(impl_->node == nullptr, "contiguous: this tensor is on the tape; use the op");
  return clone();
}

Tensor Tensor::detach() const {
  if (!impl_->node) return *this;
  Tensor t;
  t.impl_ = std::make_shared<Impl>(*impl_);
  t.impl_->node = nullptr;
  return t;
}

bool bits_equal(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         std::memcmp(a.raw(), b.raw(), size_t(a.numel()) * item_size(a.dtype())) == 0;
}

}  // namespace brine
