// Products by tensor cores: f32 numbers rounded to TF32 (10 bits of fraction), sums in f32;
// integers of 8 bits. From compute capability 8.0 on; the host calls tensor_cores(type) before it
// launches such a kernel, except for integers, whose products every device has.
#pragma once

#include "tensor/cuda/core/common.cuh"

namespace brine::cuda {

// Whether products of factors in this type use tensor cores: of 16 bits, which TF32 represents
// exactly; of f32 if set_tf32() allows rounding. Values derived from the factors on the way
// (weights of a sum, gradients) are rounded to TF32 in both cases. Also whether this build's code
// for the current device has such products.
bool tensor_cores(Dtype given);

// To the nearest TF32, ties away from zero.
__device__ inline float to_tf32(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
#elif defined(BRINE_EMULATED_CUDA)
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
  return finite ? std::bit_cast<float>((bits + 0x1000u) & 0xffffe000u) : x;
#else
  return x;
#endif
}

// c += a b of one warp: a [16, 8], b [8, 8], c [16, 8], all lanes together. With g = lane / 4 and t
// = lane % 4, a lane provides a at (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4) and b at (t, g),
// (t + 4, g), and has c at (g, 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1); the layout of
// mma.m16n8k8 in the PTX specification.
__device__ inline void multiply_add(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
        "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
#elif defined(BRINE_EMULATED_CUDA)
  emulator::multiply_add(c, a, b);
#else
  __trap();  // tensor_cores(type) is false there
#endif
}

// c += a b of one warp, signed integers of 8 bits: a [16, 32], b [32, 8], c [16, 8], all lanes
// together. A lane provides a at rows g, g + 8, g, g + 8 and columns 4 t to 4 t + 3, twice, then
// 4 t + 16 to 4 t + 19, twice, and b at these rows of column g, the first in the lowest byte; c as
// above. The layout of mma.m16n8k32 in the PTX specification.
__device__ inline void multiply_add(int32_t (&c)[4], const uint32_t (&a)[4],
                                    const uint32_t (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#elif defined(BRINE_EMULATED_CUDA)
  emulator::multiply_add(c, a, b);
#else
  const int lane = int(threadIdx.x) % kWarp, rows = lane / 4 * 4, columns = lane % 4 * 8;
  for (int t = 0; t < 4; ++t) {
    for (int half = 0; half < 2; ++half) {
      const int upper = int(__shfl_sync(kAllLanes, a[2 * half], rows + t)),
                lower = int(__shfl_sync(kAllLanes, a[2 * half + 1], rows + t)),
                left = int(__shfl_sync(kAllLanes, b[half], columns + t)),
                right = int(__shfl_sync(kAllLanes, b[half], columns + 4 + t));
      c[0] = __dp4a(upper, left, c[0]);
      c[1] = __dp4a(upper, right, c[1]);
      c[2] = __dp4a(lower, left, c[2]);
      c[3] = __dp4a(lower, right, c[3]);
    }
  }
#endif
}

}  // namespace brine::cuda
