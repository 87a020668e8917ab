// The simple layers: linear, embedding, dropout, norms, feed-forward, convolution. Others:
// positions.h, projections.h.
#pragma once

#include <cmath>

#include "autograd/ops.h"
#include "nn/layers/module.h"
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

enum class NormKind { layer, rms };

// LayerNorm (biased variance), or RMSNorm (Zhang and Sennrich 2019), which has neither mean nor
// bias; over the last axis, weight from `gain`, bias 0.
struct Norm : Module {
  Norm(Init& init, NormKind kind, int64_t size, double eps, double gain = 1)
      : weight(parameter("weight", init.full({size}, gain), false)),
        bias(kind == NormKind::layer ? &parameter("bias", init.zeros({size}), false) : nullptr),
        eps(eps) {}

  Tensor operator()(const Tensor& x) const {
    return bias ? layernorm(x, weight, *bias, eps) : rmsnorm(x, weight, eps);
  }

  // x + residual and the norm of it, in one pass.
  NormedSum of_sum(const Tensor& x, const Tensor& residual) const {
    return bias ? add_layernorm(x, residual, weight, *bias, eps)
                : add_rmsnorm(x, residual, weight, eps);
  }

  Parameter& weight;
  Parameter* bias;  // null: RMSNorm
  double eps;
};

struct LayerNorm : Norm {
  LayerNorm(Init& init, int64_t size, double eps = 1e-5, double gain = 1)
      : Norm(init, NormKind::layer, size, eps, gain) {}
};

// The part after attention in a layer, plain or gated, whose parts the family names:
// x [..., C] -> down(activation(up(x))) [..., C], or with a gate (Shazeer 2020)
// down(activation(gate(x)) up(x)).
struct FeedForward {
  const Linear &up, &down;
  Activation activation;
  const Linear* gate = nullptr;  // null: plain

  Tensor operator()(const Tensor& x) const {
    CostScope scope("mlp");
    return down(gate ? mul(gate->activated(x, activation), up(x)) : up.activated(x, activation));
  }
};

// Convolution of images [B, tokens, columns, channels], causal along the tokens or centred.
struct Conv2dConfig {
  int64_t in = 1, out = 1;  // channels
  int64_t kernel = 3;       // odd: number of rows and columns that it reads
  int64_t stride = 1;       // on the token axis
  bool causal = true;       // row t reads rows <= t; else as many after it as before
  bool bias = true;
};

// Weight [out, in, kernel, kernel] and bias from U(+-1/sqrt(fan in)). Columns are padded by zeros
// on both sides.
struct Conv2d : Module {
  Conv2d(Init& init, const Conv2dConfig& config)
      : config(checked(config)),
        weight(parameter(
            "weight",
            init.uniform({config.out, config.in, config.kernel, config.kernel}, bound(config)))),
        bias(config.bias ? &parameter("bias", init.uniform({config.out}, bound(config)), false)
                         : nullptr) {}

  // Rows of zeros that the first and the last row read.
  Halo halo() const {
    const int64_t span = config.kernel - 1;
    return config.causal ? Halo{span, 0} : Halo{span / 2, span / 2};
  }

  // x [B, rows, W, in] has halo() around it; `how` gives additional operations (ReLU, the rows that
  // the next convolution reads). The stride is the module's.
  Tensor of_padded(const Tensor& x, Convolution how) const {
    how.stride = config.stride;
    return conv2d(x, weight, bias ? bias->value : Tensor(), how);
  }

  Conv2dConfig config;
  Parameter& weight;
  Parameter* bias;  // [out], null when there is none

 private:
  static const Conv2dConfig& checked(const Conv2dConfig& c) {
    check(c.in >= 1 && c.out >= 1, "conv2d: ", c.in, " to ", c.out, " channels");
    check(c.kernel >= 1 && c.kernel % 2 == 1, "conv2d: kernel ", c.kernel, " must be odd");
    check(c.stride >= 1, "conv2d: stride ", c.stride, " must be at least 1");
    return c;
  }
  static double bound(const Conv2dConfig& c) {
    return 1 / std::sqrt(double(c.in * c.kernel * c.kernel));
  }
};

}  // namespace brine::nn
