// Copies between pinned memory and a device, as the backends implement them (see accelerator.h);
// tensor/functions/transfer.h has their order.
#pragma once

#include <memory>

#include "tensor/base/error.h"
#include "tensor/device/allocator.h"

namespace brine {

// While an object lives, CPU memory that this thread allocates is page-locked, which the copies
// below need: the device accesses it directly. It is far more expensive to allocate than other
// memory and is cached like a device's. Without a device nothing changes.
class PinnedMemory : NonCopyable {
 public:
  explicit PinnedMemory(Device device);
  ~PinnedMemory();

 private:
  Device before_;
};
// Of all devices together.
AllocatorStats pinned_stats();

namespace cuda {

// A copy that may be in flight; empty: none.
using Ticket = std::shared_ptr<void>;

// Page-locked memory; null when the system refuses.
void* system_allocate_pinned(size_t bytes, int index);
void system_release_pinned(void* block) noexcept;
// The contents of device memory after all work queued so far, for the allocator's guard bands;
// waits() does not count this wait.
void system_read(void* to, const void* from, size_t bytes, int index);

// Copies from or to pinned memory, concurrent with kernels: after all work queued so far.
Ticket start_upload(void* to, const void* from, size_t bytes, Device device);
Ticket start_download(void* to, const void* from, size_t bytes, Device device);
// Work that is queued on the device from now on runs after the copy.
void order_after(const Ticket& copy, Device device);
// This thread waits for the copy, unless it is known to have ended: kernels were ordered after it
// and the device was synchronised since.
void wait(const Ticket& copy);

// How often this thread has waited for a device since its start: in download(), synchronize() and
// wait(), and in upload() if too many earlier uploads may still be in flight.
int64_t waits();

}  // namespace cuda
}  // namespace brine
