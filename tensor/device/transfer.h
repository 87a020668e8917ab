// Copies between the CPU and a device beside its kernels: neither the device nor the thread that
// asks waits for them.
//
// All kernels of a device are on one stream, and the allocator hands a block out again as soon as
// it came back, since its next user runs after the last. A copy on another stream is not in that
// order, and these two classes put it there:
// - it starts after all that was asked of the device before, for then its source has been computed
//   and whoever had the memory of its target before is done with it;
// - both ends are kept from the allocator until this thread has seen the copy end; `release` by
//   another one would hand the memory to a kernel that does not know of the copy.
#pragma once

#include <memory>
#include <vector>

#include "tensor/device/allocator.h"
#include "tensor/tensor.h"

namespace brine {

// While one lives, memory of the CPU that this thread asks for is page-locked, which the copies
// below need: the device reads and writes it by itself. It costs far more than other memory to get
// and is kept and handed out again like a device's. On the CPU nothing changes.
class PinnedMemory {
 public:
  explicit PinnedMemory(Device device);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

 private:
  Device before_;
};
// Of all devices together.
AllocatorStats pinned_stats();

namespace cuda {
// A copy that may be under way; empty: none.
using Ticket = std::shared_ptr<void>;
}  // namespace cuda

// Tensors of a device on their way to the CPU. May be handed to another thread.
class Downloads {
 public:
  Downloads() = default;
  Downloads(Downloads&&) = default;
  Downloads& operator=(Downloads&& other) noexcept;
  ~Downloads();

  // The tensor on the CPU: itself where it lies there, else one whose numbers are there when
  // finish() has returned, in pinned memory. x must not be changed until then.
  Tensor start(const Tensor& x);
  // Waits for the copies and lets go of the device's tensors. Throws what went wrong on the device.
  void finish();

 private:
  cuda::Ticket last_;  // copies end in the order of their start
  std::vector<Tensor> ends_;
};

// Tensors of the CPU on their way to a device.
class Uploads {
 public:
  Uploads() = default;
  Uploads(Uploads&&) = default;
  Uploads& operator=(Uploads&& other) noexcept;
  ~Uploads();  // waits for the copies; when a kernel of the device used them they are long done

  // The tensor there, for kernels that are asked for after admit(). x must lie in pinned memory and
  // is kept; it must not be changed.
  Tensor start(const Tensor& x, Device device);
  // What is asked of the device from now on comes after the copies; this thread does not wait.
  void admit() const;

 private:
  cuda::Ticket last_;
  Device device_;
  std::vector<Tensor> ends_;
};

// The single elements of tensors, all on one device, with one wait for it.
std::vector<double> items(const std::vector<Tensor>& scalars);

// What the backends provide for this (see accelerator.h).
namespace cuda {

// Page-locked memory; null when the system refuses.
void* system_allocate_pinned(size_t bytes, int index);
void system_release_pinned(void* block) noexcept;
// What lies in the device's memory after all that was asked for before, for the allocator's guard
// bands: a wait that waits() leaves out.
void system_read(void* to, const void* from, size_t bytes, int index);

// Copies from or to pinned memory, beside the kernels: after all that was asked for before.
Ticket start_upload(void* to, const void* from, size_t bytes, Device device);
Ticket start_download(void* to, const void* from, size_t bytes, Device device);
// What is asked of the device from now on comes after the copy.
void order_after(const Ticket& copy, Device device);
// This thread waits for the copy, unless it is known to have ended: kernels were ordered after it
// and the device was waited for since.
void wait(const Ticket& copy);

// How often this thread has waited for a device since its start: in download(), synchronize() and
// wait(), and in upload() where too much of what went before may still be on its way.
int64_t waits();

}  // namespace cuda
}  // namespace brine
