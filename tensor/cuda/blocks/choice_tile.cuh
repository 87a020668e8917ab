// Parts of the choice of key blocks that know nothing of blocks: products of a few rows with many,
// and the largest of a warp's keys.
#pragma once

#include "tensor/cuda/blocks/block_tile.cuh"
#include "tensor/cuda/core/half_products.cuh"

namespace brine::cuda {

constexpr int kChoiceColumns = 64;  // numbers of a row per product

constexpr int kChoiceSlots[2] = {64, 32};  // in f32, in f64

// Products of `Lanes` rows with `slots` rows of sums: 16 threads share four lanes.
template <class Number, int Lanes>
struct ChoiceTile {
  using T = Number;
  static constexpr int rows = Lanes, slots = kChoiceSlots[sizeof(T) / 8];
  static constexpr int thread_rows = 4, row_stride = Lanes / thread_rows, keys = slots / kAcross;
  static constexpr int threads = row_stride * kAcross, step = row_step<T>(kChoiceColumns);
  struct Sums {
    T of[thread_rows][keys] = {};
  };

  __device__ static int row(int i) { return int(threadIdx.x) / kAcross + i * row_stride; }
  __device__ static int slot(int n) { return int(threadIdx.x) % kAcross + n * kAcross; }

  // sums += x y^T, of which only the first `used` columns are not 0.
  __device__ static void add(Sums& sums, const T* x, const T* y, int used) {
    constexpr int n = kWide<T>;
#pragma unroll 2
    for (int c = 0; c < used; c += n) {
      Pack<T, n> row_packs[thread_rows];
#pragma unroll
      for (int i = 0; i < thread_rows; ++i) row_packs[i] = load_pack<n>(x + row(i) * step + c);
#pragma unroll
      for (int j = 0; j < keys; ++j) {
        const Pack<T, n> other = load_pack<n>(y + slot(j) * step + c);
#pragma unroll
        for (int i = 0; i < thread_rows; ++i) {
#pragma unroll
          for (int e = 0; e < n; ++e) sums.of[i][j] += row_packs[i].v[e] * other.v[e];
        }
      }
    }
  }
  // f(row, slot, sum) of the thread.
  template <class F>
  __device__ static void each(const Sums& sums, F&& f) {
#pragma unroll
    for (int j = 0; j < keys; ++j) {
#pragma unroll
      for (int i = 0; i < thread_rows; ++i) f(row(i), slot(j), sums.of[i][j]);
    }
  }
};

// Shared memory of the choice by lanes of `Layout`: the lanes' rows, two tiles of sums, the
// products, and what the lanes need to read them.
template <class Layout>
struct ChoiceShared {
  using T = typename Layout::T;
  static constexpr int product_step = Layout::slots + 1;
  static constexpr size_t tiles =
      size_t(Layout::rows + 2 * Layout::slots) * Layout::step * sizeof(T);
  static constexpr size_t products = Layout::rows * product_step * sizeof(T);
  static constexpr size_t bytes = tiles + (products + 15) / 16 * 16 + Layout::rows * sizeof(T);
};

// tile [count, kChoiceColumns] = the rows of d numbers at from(r), 0 where that is null, once
// wait_copies() and a barrier were passed.
template <class Layout, int count, class F, class T = typename Layout::T>
__device__ inline void load_choice_rows(T* tile, F&& from, int64_t d, bool packed) {
  constexpr int n = kWide<T>, packs = kChoiceColumns / n;
#pragma unroll 2
  for (int i = threadIdx.x; i < count * packs; i += Layout::threads) {
    const int r = i / packs, c = i % packs * n;
    const T* row = from(r);
    T* to = tile + r * Layout::step + c;
    if (packed) {
      const bool present = row && c < d;
      copy_16(to, present ? row + c : nullptr, present);
    } else {
#pragma unroll
      for (int e = 0; e < n; ++e) to[e] = row && c + e < d ? row[c + e] : T{};
    }
  }
}

// x / y by the approximate instruction, for guesses that are verified.
__device__ inline float rough_quotient(float x, float y) {
#if defined(__CUDA_ARCH__)
  return __fdividef(x, y);
#else
  return x / y;
#endif
}

__device__ inline uint32_t warp_count(uint32_t x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_add_sync(kAllLanes, x);
#else
  return warp_sum(x);
#endif
}

__device__ inline uint32_t warp_least(uint32_t x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_min_sync(kAllLanes, x);
#else
  return warp_reduce(x, [](uint32_t a, uint32_t b) { return b < a ? b : a; });
#endif
}
__device__ inline uint32_t warp_largest(uint32_t x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_max_sync(kAllLanes, x);
#else
  return warp_reduce(x, Max{});
#endif
}

// put(j, lanes) for every register j of a warp's keys: the lanes whose key is one of the `k`
// largest that are not 0, of equal ones the later, as each_largest() of keys j * kWarp + lane.
template <int kPerLane, class Put>
__device__ inline void take_few(const uint32_t (&key)[kPerLane], int64_t k, Put&& put) {
  uint32_t low = 0xffffffffu, high = 0, nonzero = 0;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    nonzero += key[j] != 0;
    low = key[j] - 1 < low - 1 ? key[j] : low;  // 0 - 1 is the largest number: zeros never win
    high = key[j] > high ? key[j] : high;
  }
  auto count = [&](auto&& is) {
    uint32_t matches = 0;
#pragma unroll
    for (int j = 0; j < kPerLane; ++j) matches += is(key[j]);
    return warp_count(matches);
  };
  const uint32_t may = warp_count(nonzero), take = k < may ? uint32_t(k) : may;
  if (take == 0) return;
  low = warp_least(low);
  high = warp_largest(high);
  // As find_threshold() of tensor/kernels/select.h.
  uint32_t above_low = may, above_high = 0, equal = 0, above = take;
  if (take == may) high = low;
  bool exact = take == may, halve = false;
  while (low < high) {
    const uint32_t range = high - low;
    const float share = rough_quotient(float(take - above_high), float(above_low - above_high));
    const uint32_t back = halve || share >= 1 ? range / 2 : uint32_t(float(range) * share);
    const uint32_t middle = back < range ? high - back : low + 1;
    const uint32_t here = count([middle](uint32_t x) { return x >= middle; });
    if (here >= take) {
      low = middle;
      above_low = here;
    } else {
      high = middle - 1;
      above_high = here;
    }
    exact = here == take;
    if (exact) break;
    halve = high - low > range / 2;
  }
  uint32_t skip = 0;
  if (!exact) {
    above = count([low](uint32_t x) { return x > low; });
    equal = count([low](uint32_t x) { return x == low; });
    skip = equal - (take - above);
  }
  const uint32_t below = (1u << threadIdx.x % kWarp) - 1;
  uint32_t ties = 0;
#pragma unroll
  for (int j = 0; j < kPerLane; ++j) {
    bool chosen = key[j] >= low;  // not keys of 0, since low > 0
    if (skip > 0) {
      const unsigned same = __ballot_sync(kAllLanes, key[j] == low);
      if (key[j] == low) chosen = ties + __popc(same & below) >= skip;
      ties += __popc(same);
    }
    put(j, __ballot_sync(kAllLanes, chosen));
  }
}

}  // namespace brine::cuda
