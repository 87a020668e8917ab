// In what type layers multiply.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace brine {

// While one lives, linear(), linear_pair(), conv2d() and flash_attention() of this thread take
// their f32 inputs rounded to bf16 and add in f32, forward and backward; kept activations take half
// the memory. Softmax, norms, losses, running sums and the sparse path are as ever. With f32, or
// without one, nothing is rounded. f64 is never touched.
class ComputeType {
 public:
  explicit ComputeType(Dtype type);  // f32 or bf16; throws for others
  ~ComputeType();
  ComputeType(const ComputeType&) = delete;
  ComputeType& operator=(const ComputeType&) = delete;

 private:
  Dtype before_;
};

Dtype compute_type();

// True where linear() and its like round inputs of this type and so many rows. Few rows are a walk
// over the weights, which rounding them would only lengthen.
bool rounds_inputs(Dtype type, int64_t rows);

// Tensors as a product takes them. An op decides once, and does the same backward.
struct ProductInput {
  bool half;
  Tensor operator()(const Tensor& t) const { return half ? t.to(Dtype::bf16) : t; }
};

}  // namespace brine
