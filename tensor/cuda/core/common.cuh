// The base of all CUDA kernels: the function that launches them, sums over warps and blocks, the
// number of keys that a row sees, the group of lanes that selection works in.
//
// The sources here are compiled twice: by nvcc, and by the host compiler against the emulator in
// tests/cuda/emulator, which runs them on a machine without a GPU. They therefore use CUDA C++
// without <<<>>>, inline assembly (except tensor_cores.cuh and half_products.cuh), __constant__ and
// device lambdas, and only the names that the emulator has.
#pragma once

#include <cuda_runtime.h>

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define BRINE_NVTX 1
#endif

#include <algorithm>
#include <cstdint>

#include "tensor/base/error.h"
#include "tensor/base/math.h"
#include "tensor/cuda/core/small_uploads.h"
#include "tensor/device/accelerator.h"
#include "tensor/mask/csr.h"
#include "tensor/tensor.h"

namespace brine::cuda {

// Throws the runtime's error, with the name of the kernel or call and the device.
void check_cuda(cudaError_t status, const char* what);
// The kernel that this thread launched last, for messages; null before the first.
const char*& last_launch();
// The stream of all kernels and copies of the current device.
cudaStream_t stream();
// Bytes of shared memory that a block may use on the current device: 64 KB to 227 KB.
size_t max_shared();
// Lets a kernel have `shared` bytes of dynamic shared memory on the current device, in addition to
// those that it declares; throws if a block cannot have both. The runtime is asked once for a
// kernel, and again for more.
void allow_shared(const char* name, const void* kernel, size_t shared);
// This thread's counts, to be added to.
HostWork& counted_work();

// The name of a kernel around its launch, for nsys and ncu (--nvtx): it costs two reads of a
// pointer when neither watches.
class ProfilerRange : NonCopyable {
 public:
#if BRINE_NVTX
  explicit ProfilerRange(const char* name) { nvtxRangePushA(name); }
  ~ProfilerRange() { nvtxRangePop(); }
#else
  explicit ProfilerRange(const char*) {}
#endif
};

constexpr int kThreads = 256;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kWarp = 32;

// Blocks of `size` that cover n; at least one, since an empty grid is refused.
inline unsigned blocks_for(int64_t n, int64_t size) {
  const int64_t blocks = n > 0 ? (n + size - 1) / size : 1;
  check(blocks < (int64_t(1) << 31), "cuda: ", n, " pieces are too many for one launch");
  return unsigned(blocks);
}

// Launches `kernel` on the current device's stream, with `shared` bytes of dynamic shared memory,
// and checks it. BRINE_CALL has made the device of the tensors the current one.
template <class... P, class... A>
void launch(const char* name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
            A... args) {
  // By default a block gets 48 KB, including the kernel's static declarations.
  if (shared > 32 * 1024) allow_shared(name, (const void*)kernel, shared);
  last_launch() = name;
  ++counted_work().launches;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream();
  const ProfilerRange range(name);
  check_cuda(cudaLaunchKernelEx(&config, kernel, P(args)...), name);
}

// One thread for each of n pieces.
template <class... P, class... A>
void launch_each(const char* name, int64_t n, void (*kernel)(P...), A... args) {
  if (n > 0) launch(name, kernel, dim3(blocks_for(n, kThreads)), dim3(kThreads), 0, args...);
}

// The piece of the calling thread in launch_each().
__device__ inline int64_t piece() { return int64_t(blockIdx.x) * blockDim.x + threadIdx.x; }

// The dynamic shared memory of the block.
template <class T>
__device__ inline T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char brine_shared[];
  return reinterpret_cast<T*>(brine_shared);
}

// ---- reductions, the same on every lane; in a fixed order, so that bits repeat
struct Plus {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

// Over the 32 lanes of a warp, all of which must call.
template <class T, class Op>
__device__ inline T warp_reduce(T value, Op op) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = op(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}
template <class T>
__device__ inline T warp_sum(T value) {
  return warp_reduce(value, Plus{});
}
template <class T>
__device__ inline T warp_max(T value) {
  return warp_reduce(value, Max{});
}

// Over a one-dimensional block of whole warps, all threads of which must call. `start` is neutral.
template <class T, class Op>
__device__ inline T block_reduce(T value, T start, Op op) {
  __shared__ T parts[kWarp];
  value = warp_reduce(value, op);
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  __syncthreads();  // the parts of the previous call may still be read
  if (lane == 0) parts[warp] = value;
  __syncthreads();
  return warp_reduce(lane < int(blockDim.x) / kWarp ? parts[lane] : start, op);
}
template <class T>
__device__ inline T block_sum(T value) {
  return block_reduce(value, T(0), Plus{});
}

// Small tensors that a kernel needs on the device; lengths, ids and positions are made on the CPU.
// Keeps the copy alive while kernels are launched with it. The same few numbers, such as the
// lengths of a batch, are uploaded once (small_uploads.h).
class OnDevice {
 public:
  OnDevice(const Tensor& x, Device device) {
    if (!x.defined()) return;
    small_ = small_upload(x, device);
    if (small_) {
      dtype_ = x.dtype();
    } else {
      copy_ = x.to(device);
    }
  }
  template <class T>
  const T* data() const {
    if (!small_) return copy_.defined() ? copy_.data<T>() : nullptr;
    check(DtypeOf<T>::value == dtype_, "Tensor: data<", DtypeOf<T>::value, "> of a ", dtype_,
          " tensor");
    return static_cast<const T*>(small_.get());
  }

 private:
  Tensor copy_;
  std::shared_ptr<const void> small_;
  Dtype dtype_ = Dtype::f32;
};

// RowWidths of a Visibility whose lengths may be on any device; keep it alive over the launch.
class DeviceWidths {
 public:
  DeviceWidths(const Visibility& visible, int64_t rows, Device device)
      : lengths_(visible.lengths, device),
        rows_(rows),
        first_(visible.first),
        causal_(visible.causal) {}
  RowWidths get() const { return {lengths_.data<int64_t>(), rows_, causal_, first_}; }

 private:
  OnDevice lengths_;
  int64_t rows_, first_;
  bool causal_;
};

// ---- a group of lanes for tensor/kernels/select.h (see LaneGroup there): one warp
struct WarpGroup {
  static constexpr int size = kWarp;

  __device__ int lane() const { return int(threadIdx.x) % kWarp; }
  __device__ void sync() const { __syncwarp(); }

  template <class F>
  __device__ void each(int64_t n, F&& f) const {
    for (int64_t i = lane(); i < n; i += kWarp) f(i);
    sync();
  }

  template <class V, class F, class Op>
  __device__ V reduce(int64_t n, V start, F&& f, Op&& op) const {
    V sum = start;
    for (int64_t i = lane(); i < n; i += kWarp) sum = op(sum, f(i));
    return warp_reduce(sum, op);
  }

  template <class Flag, class F>
  __device__ void scan(int64_t n, Flag&& flag, F&& f) const {
    int64_t before = 0;
    for (int64_t first = 0; first < n; first += kWarp) {
      const int64_t i = first + lane();
      const bool flagged = i < n && flag(i);
      const unsigned ballot = __ballot_sync(kAllLanes, flagged);
      const unsigned below = ballot & ((1u << lane()) - 1);
      if (i < n) f(i, flagged, before + __popc(below));
      before += __popc(ballot);
    }
    sync();
  }
};

}  // namespace brine::cuda
