// Tensor: a handle to strided memory. Math is in tensor/kernels/ and autograd/ops.h.
#pragma once

#include <algorithm>
#include <memory>
#include <ostream>
#include <span>
#include <vector>

#include "tensor/base/dtype.h"
#include "tensor/base/shape.h"
#include "tensor/device/device.h"

namespace brine {

struct Node;  // defined in autograd/node.h; tensor/ only stores the pointer.

// A block of memory shared by tensors and their views. On the meta device it has a size but no
// bytes.
struct Storage : NonCopyable {
  Storage(size_t size, Device where);
  // Memory from outside the allocator. `owner` keeps it alive: the last tensor that uses it
  // releases the owner, whose deleter frees the memory.
  Storage(void* bytes, size_t size, Device where, std::shared_ptr<void> owner);
  ~Storage();

  void* bytes = nullptr;
  size_t size = 0;
  Device device;
  uint64_t version = 0;  // counts writes in place after construction; backward checks it
  bool foreign = false;  // from outside the allocator

 private:
  std::shared_ptr<void> owner_;
};

class Tensor {
 public:
  Tensor() = default;  // undefined
  static Tensor empty(const Shape& shape, Dtype dtype = Dtype::f32, Device device = {});
  static Tensor zeros(const Shape& shape, Dtype dtype = Dtype::f32, Device device = {});
  static Tensor full(const Shape& shape, double value, Dtype dtype = Dtype::f32,
                     Device device = {});
  // Uninitialised memory with x's shape, type and device, contiguous.
  static Tensor like(const Tensor& x) { return empty(x.shape(), x.dtype(), x.device()); }
  static Tensor zeros_like(const Tensor& x) { return zeros(x.shape(), x.dtype(), x.device()); }
  // A copy of `values`; their number must match the shape.
  template <class T>
  static Tensor from(std::span<const T> values, const Shape& shape) {
    check(int64_t(values.size()) == shape.numel(), "Tensor::from: ", values.size(),
          " values do not fill ", shape);
    Tensor t = empty(shape, DtypeOf<T>::value);
    std::copy(values.begin(), values.end(), t.data<T>());
    return t;
  }
  template <class T>
  static Tensor from(const std::vector<T>& values, const Shape& shape) {
    return from(std::span<const T>(values), shape);
  }
  // A contiguous tensor over external memory, used without a copy, read and written; see Storage
  // for `owner` (null: the caller keeps the memory alive longer than any tensor). Throws when
  // `data` is null or not aligned to the element type.
  static Tensor from_memory(void* data, const Shape& shape, Dtype dtype,
                            std::shared_ptr<void> owner, Device device = {});

  // A tensor of `device` with the values that fill(CPU tensor) writes. For values that the CPU
  // computes from sizes and lengths: fill is not called for the meta device.
  template <class F>
  static Tensor filled(const Shape& shape, Dtype dtype, Device device, F fill) {
    if (device.is_meta()) return empty(shape, dtype, device);
    Tensor t = empty(shape, dtype);
    fill(t);
    return t.to(device);
  }
  // The same of f32 or f64, where element i in row-major order is value(i).
  template <class F>
  static Tensor computed(const Shape& shape, Dtype dtype, Device device, F value) {
    return filled(shape, dtype, device, [&](const Tensor& t) {
      dispatch_float(dtype, [&]<class T>() {
        T* values = t.data<T>();
        for (int64_t i = 0; i < t.numel(); ++i) values[i] = T(value(i));
      });
    });
  }

  bool defined() const { return impl_ != nullptr; }
  const Shape& shape() const { return impl_->shape; }
  const Shape& strides() const { return impl_->strides; }  // in elements
  int rank() const { return impl_->shape.rank(); }
  int64_t dim(int i) const { return impl_->shape[impl_->shape.axis(i)]; }
  int64_t stride(int i) const { return impl_->strides[impl_->shape.axis(i)]; }
  int64_t numel() const { return impl_->shape.numel(); }
  int64_t rows() const { return dim(-1) ? numel() / dim(-1) : 0; }  // all axes except the last
  Dtype dtype() const { return impl_->dtype; }
  Device device() const { return impl_->storage->device; }
  bool is_contiguous() const;

  // The first element; T must be the tensor's type. Throws on the meta device, as do item() and
  // to_vector().
  template <class T>
  T* data() const {
    check(DtypeOf<T>::value == impl_->dtype, "Tensor: data<", DtypeOf<T>::value, "> of a ",
          impl_->dtype, " tensor");
    return reinterpret_cast<T*>(raw());
  }
  unsigned char* raw() const {
    const Storage& s = *impl_->storage;
    if (s.device.is_meta()) [[unlikely]]
      refuse_values("data");
    return static_cast<unsigned char*>(s.bytes) + impl_->offset;
  }
  // The single element of a one-element tensor, as double.
  double item() const;
  // All elements in row-major order, as double.
  std::vector<double> to_vector() const;

  // Views on the same memory. They are not recorded on the tape: for a tensor that requires a
  // gradient use the ops of autograd/ops.h, or detach() first; otherwise these throw.
  Tensor view(const Shape& shape) const;  // contiguous tensors only; one size may be -1
  Tensor permute(std::initializer_list<int> axes) const;
  Tensor permute(const std::vector<int>& axes) const;
  Tensor transpose(int a, int b) const;
  Tensor slice(int axis, int64_t start, int64_t length) const;
  Tensor select(int axis, int64_t index) const;  // slice of one, without the axis
  // A view with explicit sizes and strides, starting `offset` elements after this one's start.
  Tensor as_strided(const Shape& shape, const Shape& strides, int64_t offset = 0) const;

  Tensor contiguous() const;     // itself if it is contiguous, a copy otherwise
  Tensor clone() const;          // a contiguous copy
  Tensor to(Dtype dtype) const;  // itself if it has the type, a converted copy otherwise
  // Itself if it is on the device, a contiguous copy otherwise. Copies from a device wait for it. A
  // copy to the meta device has only the shape; a copy from there is an error.
  Tensor to(Device device) const;
  Tensor detach() const;  // same memory, off the tape

  const std::shared_ptr<Node>& node() const { return impl_->node; }
  void set_node(std::shared_ptr<Node> node) const { impl_->node = std::move(node); }

  // Announces a write in place, so that backward can refuse a saved tensor that has changed.
  uint64_t version() const { return impl_->storage->version; }
  void bump_version() const { ++impl_->storage->version; }
  // True when no other tensor uses this memory and it has no other owner: it may be overwritten.
  bool is_unique() const {
    return impl_.use_count() == 1 && impl_->storage.use_count() == 1 && !impl_->storage->foreign;
  }
  bool shares_memory(const Tensor& other) const { return impl_->storage == other.impl_->storage; }

 private:
  [[noreturn]] static void refuse_values(const char* op);
  struct Impl {
    Shape shape, strides;
    Dtype dtype = Dtype::f32;
    size_t offset = 0;  // bytes
    std::shared_ptr<Storage> storage;
    std::shared_ptr<Node> node;
  };
  static Tensor over(std::shared_ptr<Storage> storage, const Shape& shape, Dtype dtype);
  Tensor restride(const Shape& shape, const Shape& strides, size_t offset, const char* op) const;

  std::shared_ptr<Impl> impl_;
};

// The first element of an optional tensor: null where it is undefined.
template <class T>
T* data_or_null(const Tensor& t) {
  return t.defined() ? t.data<T>() : nullptr;
}

// Copies the values of `from`, converted, into the memory of `to`: same shape, any strides and
// devices.
void assign(const Tensor& to, const Tensor& from);

// Whether shapes, types and bits are the same, of contiguous tensors on the CPU.
bool bits_equal(const Tensor& a, const Tensor& b);

// Shape, type, device and values, at most 24 lines of 100 columns: the middle of long axes is
// omitted. Reads only the printed values; waits for a device.
std::ostream& operator<<(std::ostream& os, const Tensor& x);

// Row-major strides of a shape, in elements.
Shape contiguous_strides(const Shape& shape);

}  // namespace brine
