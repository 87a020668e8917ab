// Exact attention token by token from a cache of all keys and values: decoding for every method
// that computes softmax attention to all keys, or to some.
#pragma once

#include "autograd/ops.h"
#include "nn/attention/attention.h"

namespace brine::nn {

class CachedAttention : public Attention {
 public:
  explicit CachedAttention(const AttentionShape& shape) : shape_(shape) {}

  // Of a method with a mask.
  AttentionTraits traits() const override {
    return {.sparse = true, .incremental = shape_.causal, .groups = true};
  }

  std::unique_ptr<AttentionState> make_state(const StateRequest& r) const override {
    return std::make_unique<KeyValueState>(r, shape_);
  }

  Tensor step(const AttentionInput& in, AttentionState& state) const override {
    auto& cache = dynamic_cast<KeyValueState&>(state);
    cache.append(in.k, in.v);
    return cache.attend(in.q);
  }

 protected:
  // Called by forward().
  static void fill(const AttentionInput& in) {
    if (!in.state) return;
    dynamic_cast<KeyValueState&>(*in.state).fill(in.slot, in.k, in.v, in.visible.lengths);
  }

  AttentionShape shape_;
};

}  // namespace brine::nn
