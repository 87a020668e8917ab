// In what type layers multiply.
#pragma once

#include "tensor/dtype.h"

namespace brine {

// While one lives, linear() of more than a few rows and conv2d() of this thread take their f32
// inputs rounded to bf16 and add in f32, forward and backward; kept activations take half the
// memory. Softmax, norms, losses, running sums and the sparse path are as ever. With f32, or
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

}  // namespace brine
