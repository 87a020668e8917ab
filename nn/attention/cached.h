// Exact attention token by token from a cache of all keys and values: decoding for every method
// that computes dense softmax attention.
#pragma once

#include "autograd/ops.h"
#include "nn/attention/attention.h"

namespace brine::nn {

class CachedAttention : public Attention {
 public:
  explicit CachedAttention(const AttentionShape& shape) : shape_(shape) {}

  std::unique_ptr<AttentionState> make_state(const StateRequest& r) const override {
    check(shape_.causal, "attention: an encoder is not decoded token by token");
    return std::make_unique<KeyValueState>(r.batch, r.capacity, shape_.groups(), shape_.head_size,
                                           r.cached(), r.device);
  }

  Tensor step(const AttentionInput& in, AttentionState& state) const override {
    auto& cache = dynamic_cast<KeyValueState&>(state);
    cache.append(in.k, in.v);
    const Tensor first = Tensor::zeros(cache.lengths().shape(), Dtype::i64);
    return merge_heads(cached_attention(in.q, cache.keys, cache.values, first, cache.lengths()));
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
