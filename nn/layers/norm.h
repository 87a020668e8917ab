// The two norms that layers use.
#pragma once

#include "autograd/ops.h"
#include "nn/layers/module.h"

namespace brine::nn {

enum class NormKind { layer, rms };

// LayerNorm, or RMSNorm (Zhang and Sennrich 2019), which has neither mean nor bias; over the last
// axis, weight from 1.
struct Norm : Module {
  Norm(Init& init, NormKind kind, int64_t size, double eps)
      : weight(parameter("weight", init.full({size}, 1), false)),
        bias(kind == NormKind::layer ? &parameter("bias", init.zeros({size}), false) : nullptr),
        eps(eps) {}

  Tensor operator()(const Tensor& x) const {
    return bias ? layernorm(x, weight, *bias, eps) : rmsnorm(x, weight, eps);
  }

  Parameter& weight;
  Parameter* bias;  // null: RMSNorm
  double eps;
};

}  // namespace brine::nn
