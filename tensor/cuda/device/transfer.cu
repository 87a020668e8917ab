// Copies between the CPU and a device: in stream order, which the caller may wait for, and
// concurrent ones on a separate stream (tensor/device/copies.h).
#include <cuda_runtime_api.h>

#include <cstring>
#include <mutex>

#include "tensor/cuda/core/common.cuh"
#include "tensor/device/accelerator.h"
#include "tensor/device/copies.h"

namespace brine::cuda {
namespace {

thread_local int64_t waited = 0;

cudaEvent_t new_event() {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  return event;
}

// The content of a ticket. The runtime may release an event once it has happened.
struct Copy : NonCopyable {
  cudaEvent_t done = new_event();
  Device device;
  bool ordered = false;  // order_after() was called: a synchronisation of the kernels' stream ...
  int64_t drains = 0;    // ... after this count shows that the copy has ended

  explicit Copy(Device where) : device(where) {}
  ~Copy() { cudaEventDestroy(done); }
};

Copy& copy_of(const Ticket& ticket) { return *static_cast<Copy*>(ticket.get()); }

// Pinned staging memory for uploads, so that callers may change their data at once. It is allocated
// in parts, and a part is reused when its uploads have arrived. As long as the uploads between two
// synchronisations of the caller fit into the parts, nothing waits: a training step uploads
// lengths, ids and row weights, a few hundred KB to some MB.
class Staging {
 public:
  static constexpr size_t kParts = 8, kBytes = 1 << 20;  // of each part

  std::mutex mutex;

  // Memory for a piece of at most kBytes.
  unsigned char* take(size_t bytes) {
    if (!base_) {
      void* pinned = nullptr;
      check_cuda(cudaMallocHost(&pinned, kParts * kBytes), "cudaMallocHost");
      base_ = static_cast<unsigned char*>(pinned);
      for (cudaEvent_t& event : left_) event = new_event();
    }
    if (used_ + bytes > kBytes) next_part();
    unsigned char* room = base_ + part_ * kBytes + used_;
    used_ += (bytes + 63) / 64 * 64;
    return room;
  }
  // The device has finished all queued work.
  void drained() {
    ++drains;
    for (bool& travels : travels_) travels = false;
  }
  int64_t drains = 0;

 private:
  void next_part() {
    check_cuda(cudaEventRecord(left_[part_], stream()), "cudaEventRecord");
    travels_[part_] = true;
    part_ = (part_ + 1) % kParts;
    used_ = 0;
    if (!travels_[part_]) return;
    ++waited;
    check_cuda(cudaEventSynchronize(left_[part_]), "cudaEventSynchronize");
    travels_[part_] = false;
  }

  unsigned char* base_ = nullptr;
  size_t part_ = 0, used_ = 0;
  cudaEvent_t left_[kParts] = {};
  bool travels_[kParts] = {};  // uploads of the part may be in flight
};

Staging& staging(int index) {
  static Staging* all = new Staging[kMaxDevices];
  return all[index];
}

void copy_in_order(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  check_cuda(cudaMemcpyAsync(to, from, bytes, kind, stream()), "cudaMemcpyAsync");
}

void drain() { check_cuda(cudaStreamSynchronize(stream()), "cudaStreamSynchronize"); }

// Of the current device: copies on it wait for kernels, and kernels never for those copies unless
// order_after() is called. Both directions share it: a dump downloads, a distillation uploads.
cudaStream_t copy_stream(int index) {
  static std::mutex mutex;
  static cudaStream_t streams[kMaxDevices] = {};
  std::lock_guard lock(mutex);
  cudaStream_t& device_stream = streams[index];
  if (!device_stream)
    check_cuda(cudaStreamCreateWithFlags(&device_stream, cudaStreamNonBlocking),
               "cudaStreamCreate");
  return device_stream;
}

Ticket copy_beside(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, Device device) {
  const DeviceGuard on(device.index);
  const cudaStream_t kernels = stream(), copies = copy_stream(device.index);
  const auto copy = std::make_shared<Copy>(device);
  // One event is used twice: recording it again does not change waits on the first recording.
  check_cuda(cudaEventRecord(copy->done, kernels), "cudaEventRecord");
  check_cuda(cudaStreamWaitEvent(copies, copy->done, 0), "cudaStreamWaitEvent");
  check_cuda(cudaMemcpyAsync(to, from, bytes, kind, copies), "cudaMemcpyAsync");
  check_cuda(cudaEventRecord(copy->done, copies), "cudaEventRecord");
  return copy;
}

int64_t drains(Device device) {
  Staging& s = staging(device.index);
  std::lock_guard lock(s.mutex);
  return s.drains;
}

}  // namespace

void upload(void* to, const void* from, size_t bytes, Device device) {
  const DeviceGuard on(device.index);
  ++counted_work().uploads;
  Staging& s = staging(device.index);
  std::lock_guard lock(s.mutex);
  for (size_t at = 0; at < bytes;) {
    const size_t piece = std::min(bytes - at, Staging::kBytes);
    unsigned char* room = s.take(piece);
    std::memcpy(room, static_cast<const unsigned char*>(from) + at, piece);
    copy_in_order(static_cast<unsigned char*>(to) + at, room, piece, cudaMemcpyHostToDevice);
    at += piece;
  }
}

void download(void* to, const void* from, size_t bytes, Device device) {
  const DeviceGuard on(device.index);
  if (bytes) copy_in_order(to, from, bytes, cudaMemcpyDeviceToHost);
  synchronize(device);
}

void synchronize(Device device) {
  const DeviceGuard on(device.index);
  ++waited;
  Staging& s = staging(device.index);
  std::lock_guard lock(s.mutex);  // no upload between the synchronisation and its record
  drain();
  s.drained();
}

void system_read(void* to, const void* from, size_t bytes, int index) {
  const DeviceGuard on(index);
  copy_in_order(to, from, bytes, cudaMemcpyDeviceToHost);
  drain();
}

Ticket start_upload(void* to, const void* from, size_t bytes, Device device) {
  return copy_beside(to, from, bytes, cudaMemcpyHostToDevice, device);
}

Ticket start_download(void* to, const void* from, size_t bytes, Device device) {
  return copy_beside(to, from, bytes, cudaMemcpyDeviceToHost, device);
}

void order_after(const Ticket& ticket, Device device) {
  const DeviceGuard on(device.index);
  Copy& copy = copy_of(ticket);
  check_cuda(cudaStreamWaitEvent(stream(), copy.done, 0), "cudaStreamWaitEvent");
  copy.ordered = true;
  copy.drains = drains(device);
}

void wait(const Ticket& ticket) {
  const Copy& copy = copy_of(ticket);
  if (copy.ordered && drains(copy.device) > copy.drains) return;
  ++waited;
  check_cuda(cudaEventSynchronize(copy.done), "cudaEventSynchronize");
}

int64_t waits() { return waited; }

}  // namespace brine::cuda
