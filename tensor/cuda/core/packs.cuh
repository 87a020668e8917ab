// Neighbours in memory that a thread moves as one, and the index arithmetic of long arrays.
#pragma once

#include <cuda_fp16.h>

#include "tensor/cuda/core/common.cuh"

namespace brine::cuda {

// kN neighbours, loaded and stored with as few instructions as their alignment allows.
template <class T, int kN>
struct alignas(sizeof(T) * kN) Pack {
  T v[kN];
};

// The elements that fill the widest load.
template <class T>
constexpr int kWide = 16 / int(sizeof(T));

template <int kN, class T>
__device__ inline Pack<T, kN> load_pack(const T* at) {
  return *reinterpret_cast<const Pack<T, kN>*>(at);
}
template <class T, int kN>
__device__ inline void store_pack(T* at, const Pack<T, kN>& pack) {
  *reinterpret_cast<Pack<T, kN>*>(at) = pack;
}

// A stored number in the type of sums; for f16 by its single conversion instruction.
template <class T, class S>
__device__ inline T widen(S x) {
  if constexpr (std::is_same_v<S, f16> && std::is_same_v<T, float>) {
    return __half2float(__ushort_as_half(x.bits));
  } else {
    return T(x);
  }
}

// to[i] = from[i], kN neighbours by loads of 16 bytes, or by one load if they are fewer.
template <int kN, class T>
__device__ inline void load_wide(T* to, const T* from) {
  constexpr int kPart = std::min(kN, kWide<T>);
#pragma unroll
  for (int i = 0; i < kN; i += kPart) {
    const Pack<T, kPart> part = load_pack<kPart>(from + i);
#pragma unroll
    for (int j = 0; j < kPart; ++j) to[i + j] = part.v[j];
  }
}
template <int kN, class T>
__device__ inline void store_wide(T* to, const T* from) {
  constexpr int kPart = std::min(kN, kWide<T>);
#pragma unroll
  for (int i = 0; i < kN; i += kPart) {
    Pack<T, kPart> part;
#pragma unroll
    for (int j = 0; j < kPart; ++j) part.v[j] = from[i + j];
    store_pack(to + i, part);
  }
}

// True when all addresses are multiples of `bytes`.
template <class... P>
bool aligned(size_t bytes, const P*... at) {
  return ((reinterpret_cast<uintptr_t>(at) | ...) & (bytes - 1)) == 0;
}

// a / b for a >= 0, b > 0; short for values that fit 32 bits.
__device__ inline int64_t quotient(int64_t a, int64_t b) {
  return uint64_t(a | b) >> 32 ? a / b : int64_t(uint32_t(a) / uint32_t(b));
}

// Calls f.operator()<U>() with the widest type of 16, 8, 4, 2 or 1 bytes that divides every byte
// count or-ed into `bits`.
template <class F>
void dispatch_unit(uint64_t bits, F&& f) {
  if (bits % 16 == 0) return f.template operator()<uint4>();
  if (bits % 8 == 0) return f.template operator()<uint64_t>();
  if (bits % 4 == 0) return f.template operator()<uint32_t>();
  if (bits % 2 == 0) return f.template operator()<uint16_t>();
  f.template operator()<uint8_t>();
}

}  // namespace brine::cuda
