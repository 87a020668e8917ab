// Copies between the CPU and a device, concurrent with its kernels: neither the device nor the
// calling thread waits for them.
//
// All kernels of a device are on one stream, and the allocator hands a block out again as soon as
// it is released, since its next user runs after the last. A copy on another stream is outside of
// that order, and these two classes order it:
// - it starts after all work queued on the device so far: then its source has been computed, and
//   earlier users of its target's memory are done;
// - the allocator does not reuse both ends until this thread has seen the copy end; a `release` by
//   another thread would otherwise give the memory to a kernel while the copy runs.
#pragma once

#include <vector>

#include "tensor/device/copies.h"
#include "tensor/tensor.h"

namespace brine {

// Copies that may be in flight, in the order of their end, and the memory that they keep alive.
class OpenCopies {
 public:
  OpenCopies() = default;
  OpenCopies(OpenCopies&&) = default;
  OpenCopies& operator=(OpenCopies&& other) noexcept;
  ~OpenCopies();  // waits for the copies

 protected:
  cuda::Ticket last_;
  std::vector<Tensor> ends_;
};

// Tensors that are being copied from a device to the CPU. May be moved to another thread.
class Downloads : OpenCopies {
 public:
  // The tensor on the CPU: x itself if it is there, else one in pinned memory that has the values
  // when finish() has returned. x must not be changed until then.
  Tensor start(const Tensor& x);
  // Waits for the copies and releases the device's tensors. Throws errors of the device.
  void finish();
};

// Tensors that are being copied from the CPU to a device. The destructor seldom waits: copies that
// a finished kernel used have ended.
class Uploads : OpenCopies {
 public:
  // The tensor on the device, for kernels that are launched after admit(). x must be in pinned
  // memory and is kept alive; it must not be changed.
  Tensor start(const Tensor& x, Device device);
  // Work that is queued on the device from now on runs after the copies; this thread does not wait.
  void admit() const;

 private:
  Device device_;
};

// The single elements of tensors, all on one device, with one wait for it.
std::vector<double> items(const std::vector<Tensor>& scalars);

}  // namespace brine
