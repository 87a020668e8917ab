// Devices, streams and memory of the system: tensor/device/accelerator.h on the CUDA runtime.
// Copies are in transfer.cu.
#include <cuda_runtime_api.h>

#include <mutex>
#include <vector>

#include "tensor/cuda/core/blas.h"
#include "tensor/cuda/core/tensor_cores.cuh"
#include "tensor/device/accelerator.h"
#include "tensor/device/transfer.h"

namespace brine::cuda {
namespace {

// One stream per device. Created at the first use, never destroyed: tensors with static lifetime
// may be released after main.
struct Devices {
  std::mutex mutex;
  std::vector<cudaStream_t> streams;
  std::vector<int> ptx_version;  // of this build's code there; 0: not yet determined
};

Devices& devices() {
  static Devices* all = new Devices;
  return *all;
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

cudaStream_t stream() {
  int index = 0;
  check_cuda(cudaGetDevice(&index), "cudaGetDevice");
  Devices& all = devices();
  std::lock_guard lock(all.mutex);
  if (int(all.streams.size()) <= index) all.streams.resize(size_t(index) + 1, nullptr);
  cudaStream_t& own = all.streams[size_t(index)];
  if (!own) check_cuda(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking), "cudaStreamCreate");
  return own;
}

size_t most_shared() {
  int index = 0, bytes = 0;
  check_cuda(cudaGetDevice(&index), "cudaGetDevice");
  // An attribute costs far less than all properties; it is read at every launch that needs it.
  check_cuda(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, index),
             "cudaDeviceGetAttribute");
  return size_t(bytes);
}

namespace {

bool use_tensor_cores = true;

__global__ void probe_kernel() {}

}  // namespace

void set_tensor_cores(bool on) { use_tensor_cores = on; }

bool tensor_cores(Dtype given) {
  return given != Dtype::f64 && (given != Dtype::f32 || tf32()) && tensor_cores();
}

bool tensor_cores() {
  if (!use_tensor_cores) return false;
  int index = 0;
  check_cuda(cudaGetDevice(&index), "cudaGetDevice");
  Devices& all = devices();
  std::lock_guard lock(all.mutex);
  if (int(all.ptx_version.size()) <= index) all.ptx_version.resize(size_t(index) + 1, 0);
  int& own = all.ptx_version[size_t(index)];
  if (own == 0) {
    // A device also runs code that was compiled for older ones.
    cudaFuncAttributes compiled{};
    check_cuda(cudaFuncGetAttributes(&compiled, (const void*)probe_kernel),
               "cudaFuncGetAttributes");
    own = compiled.ptxVersion;
  }
  return own >= 80;
}

int device_count() {
  int n = 0;
  if (cudaGetDeviceCount(&n) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return n;
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

bool is_idle(Device device) {
  use_device(device.index);
  const cudaError_t status = cudaStreamQuery(stream());
  if (status != cudaErrorNotReady) check_cuda(status, "cudaStreamQuery");
  return status == cudaSuccess;
}

void* stream_handle(int index) {
  use_device(index);
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
  use_device(index);
  MemoryInfo info;
  check_cuda(cudaMemGetInfo(&info.free, &info.total), "cudaMemGetInfo");
  return info;
}

void* system_allocate(size_t bytes, int index) {
  use_device(index);
  void* block = nullptr;
  const cudaError_t status = cudaMalloc(&block, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check_cuda(status, "cudaMalloc");
  return block;
}

void system_release(void* block, int index) noexcept {
  if (cudaSetDevice(index) == cudaSuccess) cudaFree(block);
}

void system_fill(void* block, unsigned char byte, size_t bytes, int index) {
  use_device(index);
  check_cuda(cudaMemsetAsync(block, byte, bytes, stream()), "cudaMemsetAsync");
}

void* system_allocate_pinned(size_t bytes, int index) {
  use_device(index);
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
