// The feed-forward part after attention in a layer, plain or gated. The family names the parts.
#pragma once

#include "nn/layers/layers.h"

namespace brine::nn {

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

}  // namespace brine::nn
