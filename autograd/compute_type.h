// The type in which layers multiply.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace brine {

// While an object lives, linear(), linear_in_out(), linear_pair(), conv2d(), flash_attention() and
// the scores of prob_loss() of this thread round their f32 inputs to bf16 or f16 and add in f32,
// forward and backward; kept activations take half the memory. On a GPU sparse_attention() gathers
// rounded rows too; on a CPU that multiplies pairs of bf16, flash_attention() rounds probabilities
// before the product with the values, and the gradients of scores. Softmax, norms, losses and
// running sums do not change. With f32, or without an object, nothing is rounded. f64 is never
// rounded.
//
// The largest f16 is 65504, and f16 loses values below 2^-24, so nothing is trained in it.
class ComputeType : NonCopyable {
 public:
  explicit ComputeType(Dtype type);  // f32, bf16 or f16; throws for others
  ~ComputeType();

 private:
  Dtype before_;
};

Dtype compute_type();

// The type to which conv2d() rounds inputs of this type, and to which linear() and similar ops with
// this number of rows round them. A few rows are one pass over the weights, which rounding would
// slow down.
Dtype product_type(Dtype type);
Dtype product_type(Dtype type, int64_t rows);

// Tensors as a product reads them. An op decides once, and uses the same in the backward pass.
struct ProductInput {
  Dtype type;
  Tensor operator()(const Tensor& t) const { return t.to(type); }
};

}  // namespace brine
