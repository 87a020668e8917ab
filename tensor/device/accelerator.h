// The functions that every CUDA backend provides in addition to the kernels. There are three
// backends, chosen by the linker: tensor/cuda/ compiled by nvcc, the same sources emulated on the
// CPU (tests only), and tensor/cuda/absent/no_cuda.cpp, which reports that the build has none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tensor/base/error.h"
#include "tensor/device/device.h"

namespace brine::cuda {

// The most devices of a process: memory and streams are kept by index.
inline constexpr int kMaxDevices = 16;

// Devices that can be used: 0 without a device or a driver, at most kMaxDevices. Never throws.
int device_count();
// Why device_count() is 0, as a clause: "no CUDA device", "this build has no CUDA kernels".
std::string why_none();
// "NVIDIA H200, 141 GB, compute capability 9.0"; the index must be below device_count().
std::string describe(int index);
// Kernels that this thread launches from now on run on that device, unless a DeviceGuard says
// otherwise.
void use_device(int index);
// The same, and the device before; the second never throws.
int exchange_device(int index);
void restore_device(int index) noexcept;

// While an object lives, this thread's calls of the runtime are for that device: streams belong to
// the device that is current, and any thread may compute with tensors of any device.
class DeviceGuard : NonCopyable {
 public:
  explicit DeviceGuard(int index) : before_(exchange_device(index)), index_(index) {}
  ~DeviceGuard() {
    if (before_ != index_) restore_device(before_);
  }

 private:
  int before_, index_;
};
// True for kernels that run on the CPU instead of a device.
bool emulated();

struct MemoryInfo {
  size_t free = 0, total = 0;  // bytes
};
MemoryInfo memory_info(int index);

// Memory for the caching allocator; null when the device refuses.
void* system_allocate(size_t bytes, int index);
void system_release(void* block, int index) noexcept;
// Fills asynchronously.
void system_fill(void* block, unsigned char byte, size_t bytes, int index);

// Whether products of f32 may round their factors to TF32 (10 bits of fraction), which tensor cores
// multiply. Off at start; for the whole process.
void set_tf32(bool on);

// Whether Brine's own kernels may use tensor cores, if the device has them. On at start; for the
// whole process.
void set_tensor_cores(bool on);

// Whether attention in 16 bits may use cuDNN. On at start; for the whole process.
void set_cudnn(bool on);
// The number of calls in which it did the work.
int64_t cudnn_calls();
// "9.19.0", or why none is used: "none: libcudnn.so.9: cannot open ...". Searches for it.
std::string cudnn_version();

// What this thread has requested from the runtime since its start: each costs the host some
// microseconds.
struct HostWork {
  int64_t launches = 0;            // kernels; those of cuBLASLt and cuDNN are not counted
  int64_t uploads = 0;             // copies to a device in stream order
  int64_t attributes = 0;          // requests for more shared memory than a kernel gets without
  int64_t mallocs = 0, frees = 0;  // of device memory, in stream order
  int64_t waiting_frees = 0;       // of those that wait for the device
};
HostWork host_work();

// To the device, in stream order: `from` may be changed when this returns.
void upload(void* to, const void* from, size_t bytes, Device device);
// From the device: waits until all earlier work is done.
void download(void* to, const void* from, size_t bytes, Device device);
// Waits until the device has done all queued work, and throws its errors.
void synchronize(Device device);
// Whether it has, without waiting; throws its errors.
bool is_idle(Device device);
// The stream of this program's kernels (a cudaStream_t), for libraries that queue work.
void* stream_handle(int index);

}  // namespace brine::cuda
