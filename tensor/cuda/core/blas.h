// Products of matrices on a device by cuBLASLt, with cached plans.
#pragma once

#include <compare>
#include <cstdint>

#include "tensor/base/dtype.h"
#include "tensor/device/device.h"

namespace brine::cuda {

// Whether products of f32 may round their factors to TF32 (10 bits of fraction), which tensor cores
// multiply. Off at start; for the whole process.
void set_tf32(bool on);
bool tf32();

// y [M, N] = alpha op(a) op(b) + beta y + bias [N], row-major; op = transpose when the flag is set.
// `batch` such products, with matrices step_* elements apart.
struct Gemm {
  Dtype in = Dtype::f32, out = Dtype::f32;  // a and b; y and the bias
  int64_t M = 0, N = 0, K = 0;
  bool ta = false, tb = false;
  int64_t lda = 0, ldb = 0, ldy = 0;  // elements from one row in memory to the next
  int64_t batch = 1, step_a = 0, step_b = 0, step_y = 0;
  bool exact = false;  // of f32, nothing is rounded to TF32, which set_tf32() allows for others

  auto operator<=>(const Gemm&) const = default;
};

struct GemmData {
  const void *a = nullptr, *b = nullptr;
  void* y = nullptr;
  const void* bias = nullptr;  // may be null; only with batch = 1
};

// The same bits at every call. False, with nothing done, when cuBLASLt has no algorithm for it.
bool gemm(const Gemm& g, const GemmData& data, double alpha, double beta, Device device);

}  // namespace brine::cuda
