// What the tests of several kernels of the estimator need.
#pragma once

#include <vector>

#include "tensor/cuda/core/scratch.h"
#include "tensor/tensor.h"

namespace brine::test {

// Limits the memory for states while an object lives.
struct Scratch {
  int64_t before = cuda::scratch_limit();
  explicit Scratch(int64_t bytes) { cuda::scratch_limit() = bytes; }
  ~Scratch() { cuda::scratch_limit() = before; }
};

inline Tensor numbers(const std::vector<int64_t>& values) {
  return Tensor::from(values, Shape{int64_t(values.size())});
}

}  // namespace brine::test
