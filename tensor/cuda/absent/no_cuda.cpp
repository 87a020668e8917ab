// The CUDA backend of a build without CUDA: every kernel throws, and no device is ever found.
#include "tensor/base/error.h"
#include "tensor/device/accelerator.h"
#include "tensor/device/gpu_software.h"

// Each declaration in tensor/kernels/ becomes a definition.
#define BRINE_KERNEL(name, ...)                                                     \
  namespace cuda {                                                                  \
  void name(__VA_ARGS__) { throw Error(#name ": this build has no CUDA kernels"); } \
  }
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include "tensor/device/copies.h"
#include "tensor/kernels/attention.h"
#include "tensor/kernels/blocks.h"
#include "tensor/kernels/conv.h"
#include "tensor/kernels/dense.h"
#include "tensor/kernels/estimator.h"
#include "tensor/kernels/primitives.h"
#include "tensor/kernels/teacher.h"

namespace brine::cuda {

int device_count() { return 0; }
std::string why_none() { return "this build has no CUDA kernels (nvcc and BRINE_CUDA make them)"; }
std::string describe(int) { throw Error(why_none()); }
void use_device(int) { throw Error(why_none()); }
int exchange_device(int) { throw Error(why_none()); }
void restore_device(int) noexcept {}
HostWork host_work() { return {}; }
bool emulated() { return false; }
MemoryInfo memory_info(int) { throw Error(why_none()); }
void* system_allocate(size_t, int) { throw Error(why_none()); }
void system_release(void*, int) noexcept {}
void system_fill(void*, unsigned char, size_t, int) { throw Error(why_none()); }
void set_tf32(bool) {}
void set_tensor_cores(bool) {}
void set_cudnn(bool) {}
int64_t cudnn_calls() { return 0; }
std::vector<std::string> cudnn_refusals() { return {}; }
std::string cudnn_version() { return "none: " + why_none(); }
void upload(void*, const void*, size_t, Device) { throw Error(why_none()); }
void download(void*, const void*, size_t, Device) { throw Error(why_none()); }
void synchronize(Device) { throw Error(why_none()); }
bool is_idle(Device) { throw Error(why_none()); }
void* stream_handle(int) { throw Error(why_none()); }
void* system_allocate_pinned(size_t, int) { throw Error(why_none()); }
void system_release_pinned(void*) noexcept {}
void system_read(void*, const void*, size_t, int) { throw Error(why_none()); }
std::string driver_version() { return ""; }
std::string runtime_version() { return ""; }
std::string cublaslt_version() { return "none: " + why_none(); }
std::string nvrtc_version() { return "none: " + why_none(); }
std::string code_note(int) { throw Error(why_none()); }
Ticket start_upload(void*, const void*, size_t, Device) { throw Error(why_none()); }
Ticket start_download(void*, const void*, size_t, Device) { throw Error(why_none()); }
void order_after(const Ticket&, Device) { throw Error(why_none()); }
void wait(const Ticket&) { throw Error(why_none()); }
int64_t waits() { return 0; }

}  // namespace brine::cuda
