// What a kernel of 16-bit products is made of: factors in registers of tensor cores, their
// products, and copies to shared memory that the copying threads need not wait for.
//
// S is bf16 or f16. With g = lane / 4 and t = lane % 4, a lane has of a [16, 16] the pairs of
// columns 2 t of rows g and g + 8, then 2 t + 8 of the same rows; of b [16, 8] rows 2 t and 2 t + 1
// of column g, then 2 t + 8 and 2 t + 9; of c [16, 8] columns 2 t and 2 t + 1 of rows g and g + 8:
// the layout of mma.m16n8k16 in the PTX specification. From compute capability 8.0 on.
#pragma once

#include "tensor/cuda/core/packs.cuh"
#include "tensor/cuda/core/tensor_cores.cuh"

namespace brine::cuda {

// Two numbers rounded to S in a register, the first in its lower half.
template <class S>
__device__ inline uint32_t pair_of(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t pair;
  if constexpr (std::is_same_v<S, bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  }
  return pair;
#else
  return uint32_t(S(first).bits) | uint32_t(S(second).bits) << 16;
#endif
}

// The numbers of a register.
template <class S>
__device__ inline float first_of(uint32_t pair) {
  S x;
  x.bits = uint16_t(pair);
  return widen<float>(x);
}
template <class S>
__device__ inline float second_of(uint32_t pair) {
  S x;
  x.bits = uint16_t(pair >> 16);
  return widen<float>(x);
}

// c += a b of one warp, sums in f32, all lanes together.
template <class S>
__device__ inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<S, bf16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#elif defined(BRINE_EMULATED_CUDA)
  // The products of two numbers of a pair are in two steps of the emulator's product: lane t has
  // k = 2 t and 2 t + 1 there, which it takes as k = t and t + 4 of either half.
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float left[4], right[2];
    for (int i = 0; i < 4; ++i) {
      const uint32_t pair = a[2 * half + i % 2];
      left[i] = i / 2 ? second_of<S>(pair) : first_of<S>(pair);
    }
    right[0] = first_of<S>(b[half]);
    right[1] = second_of<S>(b[half]);
    emulator::multiply_add(c, left, right);
  }
#else
  __trap();
#endif
}

// Four matrices of 8 rows of 8 numbers in shared memory: lane i has the address of row i % 8 of
// matrix i / 8, 16-byte aligned, and gets columns 2 t and 2 t + 1 of row g of each; transposed,
// rows 2 t and 2 t + 1 of column g.
template <bool transposed, class S>
__device__ inline void load_matrices(uint32_t (&to)[4], const S* row) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const auto at = uint32_t(__cvta_generic_to_shared(row));
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
  }
#elif defined(BRINE_EMULATED_CUDA)
  const unsigned char* slots = emulator::warp_exchange(kAllLanes, &row, sizeof row);
  const int g = emulator::lane() / 4, t = emulator::lane() % 4;
  for (int m = 0; m < 4; ++m) {
    auto number = [&](int r, int c) {
      return uint32_t(emulator::of_lane<const S*>(slots, 8 * m + r)[c].bits);
    };
    to[m] = transposed ? number(2 * t, g) | number(2 * t + 1, g) << 16
                       : number(g, 2 * t) | number(g, 2 * t + 1) << 16;
  }
#else
  __trap();
#endif
}

// 16 bytes to shared memory, zeros unless `valid`; complete after wait_copies().
__device__ inline void copy_16(void* to, const void* from, bool valid) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(uint32_t(__cvta_generic_to_shared(to))),
      "l"(from), "r"(valid ? 16 : 0)
      : "memory");
#else
  *static_cast<uint4*>(to) = valid ? *static_cast<const uint4*>(from) : uint4{};
#endif
}
// The same of 8 bytes.
__device__ inline void copy_8(void* to, const void* from, bool valid) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile(
      "cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(uint32_t(__cvta_generic_to_shared(to))),
      "l"(from), "r"(valid ? 8 : 0)
      : "memory");
#else
  *static_cast<uint64_t*>(to) = valid ? *static_cast<const uint64_t*>(from) : 0;
#endif
}
// Ends a group of the thread's copies.
__device__ inline void end_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits for all groups of the thread's copies but the last `kRunning`.
template <int kRunning>
__device__ inline void wait_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kRunning) : "memory");
#endif
}

constexpr float kLog2OfE = 1.44269504f;  // powers of two take fewer instructions than those of e

// 2^x for x <= 0, relative error 2^-22; 0 far below.
__device__ inline float exp2_nonpositive(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return x < -126.0f ? 0.0f : math::exp_nonpositive(x * 0.69314718f);
#endif
}

}  // namespace brine::cuda
