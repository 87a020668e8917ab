// Products of one row with many others, and sums of many rows with weights, by a warp: the two
// steps of attention on a sparse mask and of its gradients.
//
// Eight lanes hold a row, or a strip of it, in registers; so a warp works on four rows at once.
// What belongs to an entry (its row, its weight, its product) lies on the lane of the entry's
// number, for 32 entries at a time. The order of every sum is fixed.
#pragma once

#include "tensor/cuda/entries.cuh"

namespace brine::cuda {

constexpr int kRowLanes = 8;
constexpr int kRowGroups = kWarp / kRowLanes;

__device__ inline void load_four(float* to, const float* from) {
  const float4 x = *reinterpret_cast<const float4*>(from);
  to[0] = x.x;
  to[1] = x.y;
  to[2] = x.z;
  to[3] = x.w;
}
__device__ inline void load_four(double* to, const double* from) {
  const double2 low = *reinterpret_cast<const double2*>(from);
  const double2 high = *reinterpret_cast<const double2*>(from + 2);
  to[0] = low.x;
  to[1] = low.y;
  to[2] = high.x;
  to[3] = high.y;
}
__device__ inline void store_four(float* to, const float* from) {
  *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
}
__device__ inline void store_four(double* to, const double* from) {
  *reinterpret_cast<double2*>(to) = make_double2(from[0], from[1]);
  *reinterpret_cast<double2*>(to + 2) = make_double2(from[2], from[3]);
}

// D columns of rows that are d long and lie d apart. Whole: d = D, and rows are aligned to 16
// bytes; otherwise the strip of at most D columns from `first` on.
template <class T, int D, bool Whole>
struct Strip {
  static constexpr int kSize = D / kRowLanes;  // numbers a lane holds of a row
  // Steps of four rows whose loads are under way together: up to 128 bytes a lane.
  static constexpr int kSteps =
      std::clamp((Whole ? 128 : 64) / (kSize * int(sizeof(T))), 1, kRowLanes);

  int64_t d;
  int64_t first = 0;

  __device__ int lane() const { return int(threadIdx.x) % kWarp; }
  __device__ int64_t width() const { return Whole ? D : d; }

  __device__ void load(T (&x)[kSize], const T* row) const {
    const int sub = lane() % kRowLanes;
    if constexpr (Whole) {
#pragma unroll
      for (int i = 0; i < kSize; i += 4) load_four(x + i, row + (i * kRowLanes + sub * 4));
    } else {
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        const int64_t c = first + i * kRowLanes + sub;
        x[i] = c < d ? row[c] : T(0);
      }
    }
  }

  // The rows of entries step * 4 + group, steps from `from` on: rows[r], 0 beyond `count`. `row` is
  // the number of the row of the entry that the lane stands for.
  __device__ void load_steps(T (&x)[kSteps][kSize], const T* rows, int64_t row, int from,
                             int count) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int entry = (from + step) * kRowGroups + lane() / kRowLanes;
      const int64_t r = __shfl_sync(kAllLanes, row, entry);
      if (entry < count) {
        load(x[step], rows + r * width());
      } else {
#pragma unroll
        for (int i = 0; i < kSize; ++i) x[step][i] = 0;
      }
    }
  }

  // On lane e < count: x . rows[row of e].
  __device__ T products(const T (&x)[kSize], const T* rows, int64_t row, int count) const {
    T mine = 0;
    for (int from = 0; from * kRowGroups < count; from += kSteps) {
      T y[kSteps][kSize];
      load_steps(y, rows, row, from, count);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        T sum = 0;
#pragma unroll
        for (int i = 0; i < kSize; ++i) sum += x[i] * y[step][i];
        for (int by = kRowLanes / 2; by > 0; by /= 2) sum += __shfl_xor_sync(kAllLanes, sum, by);
        const T got = __shfl_sync(kAllLanes, sum, lane() % kRowGroups * kRowLanes);
        if (lane() / kRowGroups == from + step) mine = got;
      }
    }
    return mine;
  }

  // sums += sum over e < count of weight of e * rows[row of e]; a group of lanes has a part.
  // Weights beyond `count` must be finite.
  __device__ void add(T (&sums)[kSize], const T* rows, int64_t row, T weight, int count) const {
    for (int from = 0; from * kRowGroups < count; from += kSteps) {
      T y[kSteps][kSize];
      load_steps(y, rows, row, from, count);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int entry = (from + step) * kRowGroups + lane() / kRowLanes;
        const T w = __shfl_sync(kAllLanes, weight, entry);
#pragma unroll
        for (int i = 0; i < kSize; ++i) sums[i] += w * y[step][i];
      }
    }
  }

  // row = factor * the sums of all groups.
  __device__ void store(T* row, T (&sums)[kSize], T factor) const {
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      for (int by = kRowLanes; by < kWarp; by *= 2) {
        sums[i] += __shfl_xor_sync(kAllLanes, sums[i], by);
      }
      sums[i] *= factor;
    }
    if (lane() >= kRowLanes) return;
    if constexpr (Whole) {
#pragma unroll
      for (int i = 0; i < kSize; i += 4) store_four(row + (i * kRowLanes + lane() * 4), sums + i);
    } else {
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        const int64_t c = first + i * kRowLanes + lane();
        if (c < d) row[c] = sums[i];
      }
    }
  }
};

// Calls f.operator()<D, Whole>() for rows of d numbers in the tensors given: whole rows for the
// sizes worth a copy of the code, otherwise strips.
template <class T, class F, class... Tensors>
void dispatch_strip(int64_t d, F&& f, const Tensors&... tensors) {
  const bool aligned =
      ((!tensors.defined() || reinterpret_cast<uintptr_t>(tensors.template data<T>()) % 16 == 0) &&
       ...);
  if (aligned && d == 32) return f.template operator()<32, true>();
  if (aligned && d == 64) return f.template operator()<64, true>();
  if (aligned && d == 128) return f.template operator()<128, true>();
  f.template operator()<32, false>();
}

// f(e, x . rows[key(e)]) for the entries e of a row, each on the lane that takes it; x [d].
template <int D, bool Whole, class T, class F>
__device__ void each_product(const Entries& at, const T* x, const T* rows, int64_t d, F&& f) {
  const int lane = int(threadIdx.x) % kWarp;
  Strip<T, D, Whole> strip{d};
  T part[Strip<T, D, Whole>::kSize];
  if (Whole) strip.load(part, x);
  for (int64_t e = 0; e < at.count; e += kWarp) {
    const int count = int(at.count - e < kWarp ? at.count - e : kWarp);
    const int64_t key = lane < count ? at.columns[e + lane] - at.base : 0;
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
