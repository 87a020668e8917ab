// DLPack import and export: both versions have the same tensor struct in different envelopes.
#include "tensor/dlpack.h"

#include <iterator>
#include <memory>

namespace brine {
namespace {

using namespace dlpack;

constexpr int32_t kCpu = 1;
constexpr uint8_t kInt = 0, kUnsigned = 1, kFloat = 2, kBfloat = 4, kBool = 6;

struct TypePair {
  Dtype dtype;
  uint8_t code, bits;
};
constexpr TypePair kTypes[] = {
    {Dtype::f32, kFloat, 32},   {Dtype::f64, kFloat, 64}, {Dtype::f16, kFloat, 16},
    {Dtype::bf16, kBfloat, 16}, {Dtype::i32, kInt, 32},   {Dtype::i64, kInt, 64},
    {Dtype::u8, kUnsigned, 8},  {Dtype::u8, kBool, 8},
};

DlType type_of(Dtype dtype) {
  for (const TypePair& t : kTypes) {
    if (t.dtype == dtype) return {t.code, t.bits, 1};
  }
  throw Error(join("to_dlpack: no type for ", dtype));
}

Dtype dtype_of(const DlType& type) {
  for (const TypePair& t : kTypes) {
    if (t.code == type.code && t.bits == type.bits && type.lanes == 1) return t.dtype;
  }
  throw Error(join("from_dlpack: type code ", int(type.code), " of ", int(type.bits), " bits and ",
                   type.lanes, " lanes has no equivalent"));
}

// The state of an exported tensor: `managed.context` points to it.
template <class M>
struct Exported {
  Tensor tensor;
  Shape shape, strides;
  M managed = {};

  explicit Exported(const Tensor& x) : tensor(x), shape(x.shape()), strides(x.strides()) {
    managed.context = this;
    managed.deleter = [](M* self) { delete static_cast<Exported*>(self->context); };
    managed.tensor = {.data = x.numel() ? x.raw() : nullptr,
                      .device = {kCpu, 0},
                      .rank = x.rank(),
                      .type = type_of(x.dtype()),
                      .shape = shape.rank() ? &shape[0] : nullptr,
                      .strides = strides.rank() ? &strides[0] : nullptr,
                      .byte_offset = 0};
  }
};

template <class M>
M* exported(const Tensor& x) {
  check(x.defined(), "to_dlpack: the tensor is undefined");
  check(x.device() == Device{}, "to_dlpack: the tensor is on ", x.device(), ", not on the cpu");
  check(x.node() == nullptr, "to_dlpack: the tensor is on the tape; detach() it first");
  return &(new Exported<M>(x))->managed;
}

struct Layout {
  Shape shape, strides;
  int64_t extent = 0;  // elements from the first to after the last
};

// Checks sizes and strides, which are untrusted.
Layout layout_of(const DlTensor& t) {
  check(t.rank >= 0 && t.rank <= Shape::kMaxRank, "from_dlpack: ", t.rank, " axes, at most ",
        Shape::kMaxRank, " are supported");
  check(t.rank == 0 || t.shape, "from_dlpack: ", t.rank, " axes without a shape");
  Layout out;
  bool empty = false;
  for (int i = 0; i < t.rank; ++i) {
    check(t.shape[i] >= 0, "from_dlpack: negative size ", t.shape[i]);
    out.shape.push_back(t.shape[i]);
    empty |= t.shape[i] == 0;
  }
  out.strides = contiguous_strides(out.shape);
  if (empty) return out;
  int64_t last = 0;
  for (int i = 0; i < t.rank; ++i) {
    const int64_t size = t.shape[i];
    if (t.strides) out.strides[i] = size == 1 ? 0 : t.strides[i];
    int64_t step = 0;
    check(out.strides[i] >= 0, "from_dlpack: negative stride ", out.strides[i]);
    check(!__builtin_mul_overflow(size - 1, out.strides[i], &step) &&
              !__builtin_add_overflow(last, step, &last),
          "from_dlpack: shape ", out.shape, " with strides ", out.strides, " is too large");
  }
  out.extent = last + 1;
  return out;
}

template <class M>
Tensor imported(M* managed, bool read_only) {
  const DlTensor& t = managed->tensor;
  check(t.device.type == kCpu, "from_dlpack: device type ", t.device.type,
        " is not supported, only 1 (the cpu)");
  const Dtype dtype = dtype_of(t.type);
  const Layout layout = layout_of(t);
  auto* data = t.data ? static_cast<unsigned char*>(t.data) + t.byte_offset : nullptr;
  auto view = [&](std::shared_ptr<void> owner) {
    return Tensor::from_memory(data, {layout.extent}, dtype, std::move(owner))
        .as_strided(layout.shape, layout.strides);
  };
  if (read_only) {
    Tensor copy = view(nullptr).clone();
    if (managed->deleter) managed->deleter(managed);
    return copy;
  }
  view(nullptr);  // throws before there is an owner, which would call the deleter
  return view(std::shared_ptr<void>(managed, [](void* p) {
    M* self = static_cast<M*>(p);
    if (self->deleter) self->deleter(self);
  }));
}

}  // namespace

Managed* to_dlpack(const Tensor& x) { return exported<Managed>(x); }

ManagedVersioned* to_dlpack_versioned(const Tensor& x) {
  ManagedVersioned* managed = exported<ManagedVersioned>(x);
  managed->version = {1, 0};
  return managed;
}

Tensor from_dlpack(Managed* managed) {
  check(managed != nullptr, "from_dlpack: no tensor");
  return imported(managed, false);
}

Tensor from_dlpack(ManagedVersioned* managed) {
  check(managed != nullptr, "from_dlpack: no tensor");
  check(managed->version.major == 1, "from_dlpack: version ", managed->version.major, ".",
        managed->version.minor, " is not 1.x");
  return imported(managed, (managed->flags & kReadOnly) != 0);
}

}  // namespace brine
