// In what type layers multiply.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace brine {

// While one lives, linear(), linear_pair(), conv2d(), flash_attention() and the scores of
// prob_loss() of this thread take their f32 inputs rounded to bf16 or f16 and add in f32, forward
// and backward; kept activations take half the memory. On a GPU sparse_attention() gathers rounded
// rows too. Softmax, norms, losses and running sums are as ever. With f32, or without one, nothing
// is rounded. f64 is never touched.
//
// f16 ends at 65504 and loses what is below 2^-24: gradients have to be scaled to fit between
// (distill/losses/loss_scale.h).
class ComputeType {
 public:
  explicit ComputeType(Dtype type);  // f32, bf16 or f16; throws for others
  ~ComputeType();
  ComputeType(const ComputeType&) = delete;
  ComputeType& operator=(const ComputeType&) = delete;

 private:
  Dtype before_;
};

Dtype compute_type();

// What conv2d() rounds inputs of this type to, and linear() and its like those of so many rows. Few
// rows are a walk over the weights, which rounding them would only lengthen.
Dtype product_type(Dtype type);
Dtype product_type(Dtype type, int64_t rows);

// Tensors as a product takes them. An op decides once, and does the same backward.
struct ProductInput {
  Dtype type;
  Tensor operator()(const Tensor& t) const { return t.to(type); }
};

}  // namespace brine
