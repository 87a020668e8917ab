// DLPack: tensors from and to NumPy, PyTorch and others without a copy. The structs have the layout
// of the public specification (https://dmlc.github.io/dlpack), versions 0.8 and 1.0, so a pointer
// to DLManagedTensor of another library's header is one to dlpack::Managed.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace brine {
namespace dlpack {

struct DlDevice {
  int32_t type;  // 1 = CPU
  int32_t index;
};

struct DlType {
  uint8_t code;  // 0 int, 1 unsigned, 2 IEEE float, 4 bfloat, 6 bool
  uint8_t bits;
  uint16_t lanes;
};

struct DlTensor {
  void* data;
  DlDevice device;
  int32_t rank;
  DlType type;
  int64_t* shape;
  int64_t* strides;  // in elements; null: row-major
  uint64_t byte_offset;
};

// Version 0.8: what a Python capsule named "dltensor" points to.
struct Managed {
  DlTensor tensor;
  void* context;
  void (*deleter)(Managed* self);  // may be null
};

struct Version {
  uint32_t major, minor;
};

constexpr uint64_t kReadOnly = 1;  // of ManagedVersioned::flags

// Version 1.0: what a Python capsule named "dltensor_versioned" points to.
struct ManagedVersioned {
  Version version;
  void* context;
  void (*deleter)(ManagedVersioned* self);  // may be null
  uint64_t flags;
  DlTensor tensor;
};

}  // namespace dlpack

// The memory of the tensor itself, with its strides: both sides see each other's writes. The memory
// lives until the receiver calls the deleter. Throws for a tensor that is not on the CPU or is on
// the tape (detach() it).
dlpack::Managed* to_dlpack(const Tensor& x);
dlpack::ManagedVersioned* to_dlpack_versioned(const Tensor& x);

// A tensor on the other library's memory, whose deleter is called when the last tensor that uses it
// is gone; bool becomes u8. Memory that is marked as read-only is copied and released at once.
// Throws for other devices, types that Brine does not have, vectors of lanes, more than six axes,
// negative strides, memory that is not aligned to its type, and another major version; the caller
// then still owns `managed`.
Tensor from_dlpack(dlpack::Managed* managed);
Tensor from_dlpack(dlpack::ManagedVersioned* managed);

}  // namespace brine
