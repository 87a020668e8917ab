// Devices, streams and memory of the system: tensor/device/accelerator.h on the CUDA runtime.
// Copies are in transfer.cu.
#include <cuda_runtime_api.h>

#include <limits>
#include <map>
#include <mutex>
#include <utility>

#include "tensor/cuda/core/blas.h"
#include "tensor/cuda/core/tensor_cores.cuh"
#include "tensor/device/accelerator.h"
#include "tensor/device/copies.h"

namespace brine::cuda {
namespace {

// What is known of a device. Its stream is created at the first use and never destroyed: tensors
// with static lifetime may be released after main.
struct DeviceState {
  cudaStream_t stream = nullptr;
  int ptx_version = 0;           // of this build's code there; 0: not yet determined
  cudaMemPool_t pool = nullptr;  // null: the device has none, or it was not yet looked for
  bool pool_known = false;
};
struct Devices {
  std::mutex mutex;
  DeviceState states[kMaxDevices];
};

Devices& devices() {
  static Devices* all = new Devices;
  return *all;
}

int current_device() {
  int index = 0;
  check_cuda(cudaGetDevice(&index), "cudaGetDevice");
  check(index < kMaxDevices, "cuda: device ", index, " is beyond the ", kMaxDevices,
        " devices of this build");
  return index;
}

// The pool of the current device, whose memory is taken and returned in stream order: cudaFree
// waits for the device, which a step with batches of ever new sizes would do many times. It keeps
// what is returned. Null on a device without pools.
cudaMemPool_t memory_pool(int index) {
  Devices& all = devices();
  std::lock_guard lock(all.mutex);
  DeviceState& state = all.states[index];
  if (state.pool_known) return state.pool;
  int supported = 0;
  check_cuda(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, index),
             "cudaDeviceGetAttribute");
  if (supported) {
    uint64_t kept = std::numeric_limits<uint64_t>::max();
    check_cuda(cudaDeviceGetDefaultMemPool(&state.pool, index), "cudaDeviceGetDefaultMemPool");
    check_cuda(cudaMemPoolSetAttribute(state.pool, cudaMemPoolAttrReleaseThreshold, &kept),
               "cudaMemPoolSetAttribute");
  }
  state.pool_known = true;
  return state.pool;
}

// The shared memory of kernels that need more than they get without asking, by device and kernel.
struct Shared {
  size_t fixed = 0, allowed = 0;
};
struct SharedOfKernels {
  std::mutex mutex;
  std::map<std::pair<int, const void*>, Shared> all;
};
SharedOfKernels& shared_of_kernels() {
  static SharedOfKernels* it = new SharedOfKernels;
  return *it;
}

}  // namespace

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears an error that the device itself no longer has
  std::string hint;
  if (status == cudaErrorNoKernelImageForDevice) {
    hint = "; this build is for other GPUs, configure it with CMAKE_CUDA_ARCHITECTURES=native";
  } else if (const char* kernel = last_launch(); kernel && kernel != what) {
    // A later call reports the failure of a kernel.
    hint = join("; at or before the kernel ", kernel,
                ", with CUDA_LAUNCH_BLOCKING=1 the message names it");
  }
  throw Error(join("cuda: ", what, ": ", cudaGetErrorString(status), hint));
}

const char*& last_launch() {
  thread_local const char* name = nullptr;
  return name;
}

HostWork& counted_work() {
  thread_local HostWork work;
  return work;
}
HostWork host_work() { return counted_work(); }

cudaStream_t stream() {
  const int index = current_device();
  Devices& all = devices();
  std::lock_guard lock(all.mutex);
  cudaStream_t& device_stream = all.states[index].stream;
  if (!device_stream)
    check_cuda(cudaStreamCreateWithFlags(&device_stream, cudaStreamNonBlocking),
               "cudaStreamCreate");
  return device_stream;
}

size_t max_shared() {
  int bytes = 0;
  // An attribute costs far less than all properties; it is read at every launch that needs it.
  check_cuda(
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, current_device()),
      "cudaDeviceGetAttribute");
  return size_t(bytes);
}

void allow_shared(const char* name, const void* kernel, size_t shared) {
  const size_t limit = max_shared();
  SharedOfKernels& kernels = shared_of_kernels();
  std::lock_guard lock(kernels.mutex);
  const auto [at, is_new] = kernels.all.try_emplace({current_device(), kernel});
  Shared& sizes = at->second;
  if (is_new) {
    cudaFuncAttributes compiled{};
    check_cuda(cudaFuncGetAttributes(&compiled, kernel), name);
    sizes.fixed = compiled.sharedSizeBytes;
  }
  check(sizes.fixed + shared <= limit, name, ": a block needs ", sizes.fixed + shared,
        " bytes of shared memory of ", limit);
  if (shared <= sizes.allowed) return;
  ++counted_work().attributes;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared)),
             name);
  sizes.allowed = shared;
}

namespace {

bool use_tensor_cores = true;

__global__ void probe_kernel() {}

}  // namespace

void set_tensor_cores(bool on) { use_tensor_cores = on; }

bool tensor_cores(Dtype given) {
  if (given == Dtype::f64 || (given == Dtype::f32 && !tf32()) || !use_tensor_cores) return false;
  const int index = current_device();
  Devices& all = devices();
  std::lock_guard lock(all.mutex);
  int& version = all.states[index].ptx_version;
  if (version == 0) {
    // A device also runs code that was compiled for older ones.
    cudaFuncAttributes compiled{};
    check_cuda(cudaFuncGetAttributes(&compiled, (const void*)probe_kernel),
               "cudaFuncGetAttributes");
    version = compiled.ptxVersion;
  }
  return version >= 80;
}

int device_count() {
  int n = 0;
  if (cudaGetDeviceCount(&n) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return n < kMaxDevices ? n : kMaxDevices;
}

std::string why_none() {
  int n = 0;
  const cudaError_t status = cudaGetDeviceCount(&n);
  cudaGetLastError();
  if (status == cudaErrorInsufficientDriver) {
    int runtime = 0;
    cudaRuntimeGetVersion(&runtime);
    return join("no CUDA device: the driver is missing or too old for CUDA ", runtime / 1000, ".",
                runtime % 1000 / 10);
  }
  if (status != cudaSuccess && status != cudaErrorNoDevice) {
    return join("no CUDA device: ", cudaGetErrorString(status));
  }
  return "no CUDA device";
}

std::string describe(int index) {
  cudaDeviceProp p{};
  check_cuda(cudaGetDeviceProperties(&p, index), "cudaGetDeviceProperties");
  return join(p.name, ", ", p.totalGlobalMem / 1000000000, " GB, compute capability ", p.major, ".",
              p.minor);
}

void use_device(int index) { check_cuda(cudaSetDevice(index), "cudaSetDevice"); }

int exchange_device(int index) {
  int before = 0;
  check_cuda(cudaGetDevice(&before), "cudaGetDevice");
  if (before != index) use_device(index);
  return before;
}

void restore_device(int index) noexcept { cudaSetDevice(index); }

bool is_idle(Device device) {
  const DeviceGuard on(device.index);
  const cudaError_t status = cudaStreamQuery(stream());
  if (status != cudaErrorNotReady) check_cuda(status, "cudaStreamQuery");
  return status == cudaSuccess;
}

void* stream_handle(int index) {
  const DeviceGuard on(index);
  return stream();
}

bool emulated() {
#ifdef BRINE_EMULATED_CUDA
  return true;
#else
  return false;
#endif
}

MemoryInfo memory_info(int index) {
  const DeviceGuard on(index);
  MemoryInfo info;
  check_cuda(cudaMemGetInfo(&info.free, &info.total), "cudaMemGetInfo");
  return info;
}

void* system_allocate(size_t bytes, int index) {
  const DeviceGuard on(index);
  ++counted_work().mallocs;
  void* block = nullptr;
  cudaMemPool_t const pool = memory_pool(index);
  cudaError_t status = pool ? cudaMallocAsync(&block, bytes, stream()) : cudaMalloc(&block, bytes);
  if (pool && status == cudaErrorMemoryAllocation) {
    // Memory that was returned may be in pieces, and belongs to the pool until it is told.
    cudaGetLastError();
    check_cuda(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
    check_cuda(cudaMemPoolTrimTo(pool, 0), "cudaMemPoolTrimTo");
    status = cudaMallocAsync(&block, bytes, stream());
  }
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check_cuda(status, "cudaMalloc");
  return block;
}

void system_release(void* block, int index) noexcept {
  try {
    const DeviceGuard on(index);
    HostWork& work = counted_work();
    ++work.frees;
    if (memory_pool(index)) {
      check_cuda(cudaFreeAsync(block, stream()), "cudaFreeAsync");
    } else {
      ++work.waiting_frees;
      cudaFree(block);
    }
  } catch (const Error&) {  // an error of earlier work: the next call reports it, too
  }
}

void system_fill(void* block, unsigned char byte, size_t bytes, int index) {
  const DeviceGuard on(index);
  check_cuda(cudaMemsetAsync(block, byte, bytes, stream()), "cudaMemsetAsync");
}

void* system_allocate_pinned(size_t bytes, int index) {
  const DeviceGuard on(index);
  void* block = nullptr;
  const cudaError_t status = cudaMallocHost(&block, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check_cuda(status, "cudaMallocHost");
  return block;
}

// With any device current: page-locked memory is shared by all devices, and a caller of trim() has
// just requested more.
void system_release_pinned(void* block) noexcept { cudaFreeHost(block); }

}  // namespace brine::cuda
