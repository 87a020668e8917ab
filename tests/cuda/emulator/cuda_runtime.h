// The part of the CUDA runtime that tensor/cuda/ uses, on the CPU: the blocks of a grid run one
// after the other, the threads of a block as fibers that switch at barriers. In addition to results
// it checks that all threads of a block reach the same barriers, that the host never accesses
// device memory (which is inaccessible while no kernel runs) and passes no host address to kernels,
// nor one of another device than the current one, whose stream a launch must name, and the launches
// that a device refuses. The allocator's guard bands detect kernels that write
// outside their blocks, a band after the dynamic shared memory those that write beyond it.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>

#include "tests/cuda/emulator/launches.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ thread_local
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __noinline__
#define __grid_constant__
#define __restrict__

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct uint3 {
  unsigned x, y, z;
};

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700
};
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3
};
enum { cudaStreamNonBlocking = 1 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaDeviceAttr {
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
  cudaDevAttrMemoryPoolsSupported = 115
};
enum cudaMemPoolAttr { cudaMemPoolAttrReleaseThreshold = 4 };
struct EmulatedStream;
using cudaStream_t = EmulatedStream*;
struct EmulatedPool;
using cudaMemPool_t = EmulatedPool*;
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};
struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  size_t totalGlobalMem;
  int major, minor, multiProcessorCount, l2CacheSize;
};

struct cudaFuncAttributes {
  size_t sharedSizeBytes;
  int ptxVersion;
};

const char* cudaGetErrorString(cudaError_t status);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int* n);
cudaError_t cudaGetDevice(int* index);
cudaError_t cudaSetDevice(int index);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int index);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr what, int index);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaMalloc(void** block, size_t bytes);
cudaError_t cudaFree(void* block);
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int index);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr, void* value);
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes);
cudaError_t cudaMallocAsync(void** block, size_t bytes, cudaStream_t stream);
cudaError_t cudaFreeAsync(void* block, cudaStream_t stream);
cudaError_t cudaMallocHost(void** block, size_t bytes);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t);
cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t);
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* of, const void* kernel);
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int bytes);

namespace emulator {

// Index in its block of the thread that runs. Set by the scheduler at every change.
extern constinit thread_local int thread_index;

// Runs the body of a kernel, which is known by its address, as cudaLaunchKernelEx() would.
cudaError_t run(const cudaLaunchConfig_t& config, const void* kernel,
                const std::function<void()>& body);
// Whether there is an address of the host, or of another device than the current one, among the
// words.
bool holds_host_address(const void* words, size_t bytes);
// The number of a device: of the one that is current for this thread; of its memory, -1 of the
// host's; of a stream.
int current_device();
int device_of(const void* memory);
int device_of_stream(cudaStream_t stream);
// The same for an argument, whose padding may have any value; false where the compiler cannot clear
// it.
template <class T>
bool has_host_address([[maybe_unused]] T& argument) {
  // An empty argument may have the address of another one: it has no bytes of its own.
  if constexpr (std::is_empty_v<T>) return false;
#if defined(__has_builtin) && __has_builtin(__builtin_clear_padding)
  __builtin_clear_padding(&argument);
  return holds_host_address(&argument, sizeof argument);
#else
  return false;
#endif
}
// Makes the device's memory accessible to the host too while an object lives (fake libraries run
// on the host).
struct Reach {
  Reach();
  ~Reach();
};
void block_barrier();
// Waits for the lanes of the mask; the caller must be one of them.
void warp_barrier(unsigned mask);
// Puts `bytes` of `value` where the lanes of the warp see it, waits for the mask, and returns the
// slots of the 32 lanes, 16 bytes apart.
const unsigned char* warp_exchange(unsigned mask, const void* value, size_t bytes);

template <class T>
T of_lane(const unsigned char* slots, int lane) {
  T out;
  std::memcpy(&out, slots + size_t(lane) * 16, sizeof(T));
  return out;
}
inline int lane() { return thread_index % 32; }

// mma.m16n8k8 on TF32, all lanes of a warp together: the layout is in
// tensor/cuda/core/tensor_cores.cuh. A factor with more bits than TF32 has ends the program: the
// hardware would cut them off.
void multiply_add(float (&c)[4], const float (&a)[4], const float (&b)[2]);
// mma.m16n8k32 on signed integers of 8 bits.
void multiply_add(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

}  // namespace emulator

// constinit: no wrapper that looks for an initialisation at each use.
extern constinit thread_local uint3 threadIdx, blockIdx;
extern constinit thread_local dim3 blockDim, gridDim;

template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...),
                               A&&... args) {
  static_assert((std::is_trivially_copyable_v<P> && ...), "arguments are copied by their bytes");
  std::tuple<P...> held{P(args)...};
  const bool host =
      std::apply([](P&... x) { return (emulator::has_host_address(x) || ...); }, held);
  if (host) return cudaErrorIllegalAddress;
  if (emulator::recording()) {
    std::apply([](P&... x) { (emulator::note_operands(&x, sizeof x), ...); }, held);
  }
  return emulator::run(*config, reinterpret_cast<const void*>(kernel),
                       [&] { std::apply(kernel, held); });
}

inline void __syncthreads() { emulator::block_barrier(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { emulator::warp_barrier(mask); }
inline void __threadfence() {}
inline void __threadfence_block() {}

template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  const int base = emulator::lane() / width * width;
  return emulator::of_lane<T>(emulator::warp_exchange(mask, &value, sizeof(T)),
                              base + from % width);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32) {
  const int lane = emulator::lane(), other = lane ^ with;
  const unsigned char* slots = emulator::warp_exchange(mask, &value, sizeof(T));
  return emulator::of_lane<T>(slots, other / width == lane / width ? other : lane);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const int lane = emulator::lane(), other = lane - int(by);
  const unsigned char* slots = emulator::warp_exchange(mask, &value, sizeof(T));
  return emulator::of_lane<T>(slots, lane % width >= int(by) ? other : lane);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const int lane = emulator::lane(), other = lane + int(by);
  const unsigned char* slots = emulator::warp_exchange(mask, &value, sizeof(T));
  return emulator::of_lane<T>(slots, lane % width + int(by) < width ? other : lane);
}
inline unsigned __ballot_sync(unsigned mask, bool flag) {
  const unsigned char* slots = emulator::warp_exchange(mask, &flag, sizeof(flag));
  unsigned out = 0;
  for (int i = 0; i < 32; ++i) {
    if (mask >> i & 1) out |= unsigned(emulator::of_lane<bool>(slots, i)) << i;
  }
  return out;
}
inline bool __any_sync(unsigned mask, bool flag) { return __ballot_sync(mask, flag) != 0; }
inline bool __all_sync(unsigned mask, bool flag) { return __ballot_sync(mask, flag) == mask; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }

template <class T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T>, "sums of floats in no order are not deterministic");
  T old = *at;
  *at = old + value;
  return old;
}
template <class T>
T atomicOr(T* at, std::type_identity_t<T> value) {
  T old = *at;
  *at = old | value;
  return old;
}
template <class T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  T old = *at;
  *at = old < value ? value : old;
  return old;
}
template <class T>
T atomicMin(T* at, std::type_identity_t<T> value) {
  T old = *at;
  *at = value < old ? value : old;
  return old;
}
template <class T>
T __ldg(const T* at) {
  return *at;
}
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline double2 make_double2(double x, double y) { return {x, y}; }
