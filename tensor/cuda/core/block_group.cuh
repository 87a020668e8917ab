// The lanes of a whole block as a group for tensor/kernels/select.h, for lists too long for one
// warp.
#pragma once

#include "tensor/cuda/core/common.cuh"

namespace brine::cuda {

// A one-dimensional block of whole warps; all threads make every call.
struct BlockGroup {
  __device__ int lane() const { return int(threadIdx.x); }
  __device__ void sync() const { __syncthreads(); }

  template <class F>
  __device__ void each(int64_t n, F&& f) const {
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) f(i);
    sync();
  }

  template <class V, class F, class Op>
  __device__ V reduce(int64_t n, V start, F&& f, Op&& op) const {
    V sum = start;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum = op(sum, f(i));
    return block_reduce(sum, start, op);
  }

  template <class Flag, class F>
  __device__ void scan(int64_t n, Flag&& flag, F&& f) const {
    __shared__ int counts[kWarp];
    const int warp_lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
    const int warps = int(blockDim.x) / kWarp;
    int64_t before = 0;
    for (int64_t first = 0; first < n; first += blockDim.x) {
      const int64_t i = first + threadIdx.x;
      const bool flagged = i < n && flag(i);
      const unsigned ballot = __ballot_sync(kAllLanes, flagged);
      __syncthreads();  // the counts of the previous round may still be read
      if (warp_lane == 0) counts[warp] = __popc(ballot);
      __syncthreads();
      const int count = warp_lane < warps ? counts[warp_lane] : 0;
      const int below = warp_sum(warp_lane < warp ? count : 0);
      if (i < n) f(i, flagged, before + below + __popc(ballot & ((1u << warp_lane) - 1)));
      before += warp_sum(count);
    }
    sync();
  }
};

}  // namespace brine::cuda
