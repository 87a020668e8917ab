// The norms that layers use.
#pragma once

#include "autograd/ops.h"
#include "nn/layers/module.h"

namespace brine::nn {

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

}  // namespace brine::nn
