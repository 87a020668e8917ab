// Prefix sums of one long list of counts, in three launches: sums of tiles, a scan of these by one
// block, and the scan of every tile from its start value.
#pragma once

#include "tensor/cuda/core/common.cuh"

namespace brine::cuda {

constexpr int kTilePieces = 4;  // counts that a thread processes in sequence
constexpr int64_t kTile = kThreads * kTilePieces;

// The sum of `value` over the threads before the caller; *total is that of the whole block.
inline __device__ int64_t block_exclusive_sum(int64_t value, int64_t* total) {
  __shared__ int64_t sums[kWarp];
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  int64_t upto = value;
  for (int by = 1; by < kWarp; by *= 2) {
    const int64_t other = __shfl_up_sync(kAllLanes, upto, by);
    if (lane >= by) upto += other;
  }
  __syncthreads();  // the sums of the previous call may still be read
  if (lane == kWarp - 1) sums[warp] = upto;
  __syncthreads();
  const int64_t part = lane < int(blockDim.x) / kWarp ? sums[lane] : 0;
  *total = warp_sum(part);
  return warp_sum(lane < warp ? part : 0) + upto - value;
}

// tiles [n / kTile] = the sums of load(i) over a tile.
template <class Load>
__global__ void tile_sums_kernel(int64_t* tiles, Load load, int64_t n) {
  int64_t sum = 0;
  for (int piece = 0; piece < kTilePieces; ++piece) {
    const int64_t i = blockIdx.x * kTile + piece * kThreads + threadIdx.x;
    if (i < n) sum += load(i);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) tiles[blockIdx.x] = sum;
}

// Makes `sums` its exclusive prefix sum with one block, and returns the sum of all.
inline __device__ int64_t block_prefix_sum(int64_t* sums, int64_t n) {
  int64_t before = 0;
  for (int64_t first = 0; first < n; first += blockDim.x) {
    const int64_t i = first + threadIdx.x;
    int64_t total;
    const int64_t below = block_exclusive_sum(i < n ? sums[i] : 0, &total);
    if (i < n) sums[i] = before + below;
    before += total;
  }
  return before;
}

template <class Sum>
__global__ void __launch_bounds__(4 * kThreads) scan_tiles_kernel(Sum* tiles, int64_t n) {
  block_prefix_sum(tiles, n);
}

// store(i, sum before i, sum including i) for every i.
template <class Load, class Store>
__global__ void scan_kernel(const int64_t* tiles, Load load, Store store, int64_t n) {
  int64_t before = tiles[blockIdx.x];
  for (int piece = 0; piece < kTilePieces; ++piece) {
    const int64_t i = blockIdx.x * kTile + piece * kThreads + threadIdx.x;
    const int64_t value = i < n ? load(i) : 0;
    int64_t total;
    const int64_t below = before + block_exclusive_sum(value, &total);
    if (i < n) store(i, below, below + value);
    before += total;
  }
}

// load(i) gives the counts i < n on the device, store(i, below, upto) takes the sums.
template <class Load, class Store>
void prefix_sum(const char* name, int64_t n, Load load, Store store, Device device) {
  if (n == 0) return;
  const unsigned tiles = blocks_for(n, kTile);
  Tensor sums = Tensor::empty({int64_t(tiles)}, Dtype::i64, device);
  int64_t* at = sums.data<int64_t>();
  launch(name, tile_sums_kernel<Load>, dim3(tiles), dim3(kThreads), 0, at, load, n);
  launch(name, scan_tiles_kernel<int64_t>, dim3(1), dim3(4 * kThreads), 0, at, int64_t(tiles));
  launch(name, scan_kernel<Load, Store>, dim3(tiles), dim3(kThreads), 0, at, load, store, n);
}

}  // namespace brine::cuda
