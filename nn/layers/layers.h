// The simple layers: linear, embedding, dropout, and the norms of norm.h. Others: conv.h,
// feed_forward.h, positions.h, projections.h.
#pragma once

#include "autograd/ops.h"
#include "nn/layers/module.h"
#include "nn/layers/norm.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {

// How a linear map stores its weight; GPT-2's Conv1D is in_out.
enum class WeightLayout : uint8_t { out_in, in_out };

// y = x W^T + b, W [out, in] from N(0, init.linear_std), b 0; or y = x W + b, W [in, out]. With a
// low-rank addition (LoRA, Hu et al. 2021) W + B A takes the place of W (of W^T for [in, out]).
struct Linear : Module {
  Linear(Init& init, int64_t in, int64_t out, bool with_bias = true,
         WeightLayout layout = WeightLayout::out_in)
      : weight(parameter(
            "weight", init.normal(layout == WeightLayout::out_in ? Shape{out, in} : Shape{in, out},
                                  init.linear_std))),
        bias(with_bias ? &parameter("bias", init.zeros({out}), false) : nullptr),
        layout(layout) {}

  Tensor operator()(const Tensor& x) const {
    const Tensor b = bias ? bias->value : Tensor();
    return with_low_rank(
        layout == WeightLayout::out_in ? linear(x, weight, b) : linear_in_out(x, weight, b), x);
  }

  // activate((*this)(x), f), in one pass where the map is nothing but a product and a bias.
  Tensor activated(const Tensor& x, Activation f) const {
    if (lora_a || layout == WeightLayout::in_out) return activate((*this)(x), f);
    return linear_activation(x, weight, bias ? bias->value : Tensor(), f);
  }

  // Adds parameters lora_a, A [rank, in] from N(0, 1 / in), and lora_b, B [out, rank], 0: the map
  // stays the same until they learn. Throws when they exist.
  void add_low_rank(Init& init, int64_t rank);
  // y + x A^T B^T for the map's y; y itself without a low-rank addition.
  Tensor with_low_rank(const Tensor& y, const Tensor& x) const {
    return lora_a ? add(y, linear(linear(x, *lora_a, {}), *lora_b, {})) : y;
  }

  Parameter& weight;  // [out, in] or [in, out]
  Parameter* bias;    // [out], null when there is none
  WeightLayout layout;
  Parameter* lora_a = nullptr;  // [rank, in]
  Parameter* lora_b = nullptr;  // [out, rank]
};

// Rows of a table [rows, size] from N(0, std).
struct Embedding : Module {
  Embedding(Init& init, int64_t rows, int64_t size, double std)
      : weight(parameter("weight", init.normal({rows, size}, std))) {}

  Tensor operator()(const Tensor& ids) const { return embedding(weight, ids); }

  Parameter& weight;
};

// Each element is 0 with probability p, the others are scaled by 1 / (1 - p). The identity in
// evaluation (random is null).
struct Dropout : Module {
  explicit Dropout(double p) : p(p) {
    check(p >= 0 && p < 1, "dropout: probability ", p, " must be at least 0 and below 1");
  }

  Tensor operator()(const Tensor& x, RandomStream* random) const {
    return random && p > 0 ? dropout(x, p, *random) : x;
  }

  double p;
};

}  // namespace brine::nn
