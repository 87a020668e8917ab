// Products of one row with many others, and weighted sums of many rows, by a warp: the two steps of
// attention on a sparse mask and of its gradients.
//
// Rows are gathered as they are stored, rounded ones in 16 bits, and widened in registers. Up to
// eight lanes load a row, or a strip of it, so a warp works on at least four rows at once. The data
// of an entry (its row, its weight, its product) are in the lane with the entry's number, for 32
// entries at a time. The order of every sum is fixed.
#pragma once

#include "tensor/cuda/core/packs.cuh"
#include "tensor/mask/csr.h"

namespace brine::cuda {

// Desired blocks of 256 threads per multiprocessor in kernels of strips: as many registers as let
// 24 warps wait for their rows.
template <class T>
constexpr int kStripBlocks = sizeof(T) == 8 ? 2 : 3;

// D columns of rows of type S, d long and d apart, for sums in T. Whole: d = D, and rows are
// aligned to 16 bytes; otherwise the strip of at most D columns from `first` on.
template <class T, class S, int D, bool Whole>
struct Strip {
  static constexpr int kLanes = Whole ? std::min(8, D / kWide<S>) : 8;  // that load a row
  static constexpr int kGroups = kWarp / kLanes;
  static constexpr int kSize = D / kLanes;            // numbers of a row per lane
  static constexpr int kPack = Whole ? kWide<S> : 1;  // of them, neighbours
  // The data of one load, in one to four registers: numbers of 16 bits stay in pairs.
  using Piece = std::conditional_t<Whole, uint4, S>;
  static constexpr int kPieces = kSize / kPack;
  // Steps of kGroups rows whose loads are in flight together: up to 128 bytes per lane.
  static constexpr int kSteps =
      std::clamp(Whole ? 128 / (kSize * int(sizeof(S))) : 64 / (kSize * int(sizeof(T))), 1, kLanes);

  int64_t d;
  int64_t first = 0;

  __device__ int lane() const { return int(threadIdx.x) % kWarp; }
  __device__ int64_t width() const { return Whole ? D : d; }

  // The column of the lane's number i, the first of kPack neighbours.
  __device__ int64_t column(int i) const { return first + i * kLanes + lane() % kLanes * kPack; }

  // The lane's columns of a row in the type of sums.
  __device__ void load(T (&x)[kSize], const T* row) const {
#pragma unroll
    for (int i = 0; i < kSize; i += kPack) {
      const int64_t c = column(i);
      if constexpr (Whole) {
        load_wide<kPack>(x + i, row + c);
      } else {
        x[i] = c < d ? row[c] : T(0);
      }
    }
  }

  __device__ T number(const Piece (&row)[kPieces], int i) const {
    if constexpr (Whole) {
      return widen<T>(std::bit_cast<Pack<S, kPack>>(row[i / kPack]).v[i % kPack]);
    } else {
      return widen<T>(row[i]);
    }
  }

  // The rows of entries step * kGroups + group, steps from `from` on: rows[r], 0 beyond `count`.
  // `row` is the row number of the lane's entry.
  __device__ void load_steps(Piece (&x)[kSteps][kPieces], const S* rows, int32_t row, int from,
                             int count) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int entry = (from + step) * kGroups + lane() / kLanes;
      const S* from_row = rows + int64_t(__shfl_sync(kAllLanes, row, entry)) * width();
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int64_t c = column(i * kPack);
        x[step][i] = Piece{};
        if (entry < count && (Whole || c < d)) {
          x[step][i] = *reinterpret_cast<const Piece*>(from_row + c);
        }
      }
    }
  }

  // On lane e < count: x . rows[row of e].
  __device__ T products(const T (&x)[kSize], const S* rows, int32_t row, int count) const {
    T product = 0;
    for (int from = 0; from * kGroups < count; from += kSteps) {
      Piece y[kSteps][kPieces];
      load_steps(y, rows, row, from, count);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        T sum = 0;
#pragma unroll
        for (int i = 0; i < kSize; ++i) sum += x[i] * number(y[step], i);
        for (int by = kLanes / 2; by > 0; by /= 2) sum += __shfl_xor_sync(kAllLanes, sum, by);
        const T got = __shfl_sync(kAllLanes, sum, lane() % kGroups * kLanes);
        if (lane() / kGroups == from + step) product = got;
      }
    }
    return product;
  }

  // sums += sum over e < count of weight of e * rows[row of e]; each group of lanes has a part.
  // Weights beyond `count` must be finite.
  __device__ void add(T (&sums)[kSize], const S* rows, int32_t row, T weight, int count) const {
    for (int from = 0; from * kGroups < count; from += kSteps) {
      Piece y[kSteps][kPieces];
      load_steps(y, rows, row, from, count);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int entry = (from + step) * kGroups + lane() / kLanes;
        const T w = __shfl_sync(kAllLanes, weight, entry);
#pragma unroll
        for (int i = 0; i < kSize; ++i) sums[i] += w * number(y[step], i);
      }
    }
  }

  // Afterwards every group has the sums of all groups.
  __device__ void join(T (&sums)[kSize]) const {
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      for (int by = kLanes; by < kWarp; by *= 2) {
        sums[i] += __shfl_xor_sync(kAllLanes, sums[i], by);
      }
    }
  }

  // row = the sums, which were joined.
  __device__ void store(T* row, const T (&sums)[kSize]) const {
    if (lane() >= kLanes) return;
#pragma unroll
    for (int i = 0; i < kSize; i += kPack) {
      const int64_t c = column(i);
      if constexpr (Whole) {
        store_wide<kPack>(row + c, sums + i);
      } else {
        if (c < d) row[c] = sums[i];
      }
    }
  }
};

// Calls f.operator()<D, Whole>() for rows of d numbers in the given tensors: whole rows for the
// common sizes, otherwise strips.
template <class F, class... Tensors>
void dispatch_strip(int64_t d, F&& f, const Tensors&... tensors) {
  const bool aligned =
      ((!tensors.defined() || reinterpret_cast<uintptr_t>(tensors.raw()) % 16 == 0) && ...);
  if (aligned && d == 32) return f.template operator()<32, true>();
  if (aligned && d == 64) return f.template operator()<64, true>();
  if (aligned && d == 128) return f.template operator()<128, true>();
  f.template operator()<32, false>();
}

// f(e, x . rows[key(e)]) for the entries e of a row, each in the lane that owns it; x [d].
template <int D, bool Whole, class T, class S, class F>
__device__ void each_product(const RowEntries& at, const T* x, const S* rows, int64_t d, F&& f) {
  const int lane = int(threadIdx.x) % kWarp;
  Strip<T, S, D, Whole> strip{d};
  T part[Strip<T, S, D, Whole>::kSize];
  if (Whole) strip.load(part, x);
  for (int64_t e = 0; e < at.count; e += kWarp) {
    const int count = int(at.count - e < kWarp ? at.count - e : kWarp);
    const auto key = int32_t(lane < count ? at.columns[e + lane] - at.base : 0);
    T product = 0;
    if constexpr (Whole) {
      product = strip.products(part, rows, key, count);
    } else {
      for (strip.first = 0; strip.first < d; strip.first += D) {
        strip.load(part, x);
        product += strip.products(part, rows, key, count);
      }
    }
    if (lane < count) f(e + lane, product);
  }
}

}  // namespace brine::cuda
