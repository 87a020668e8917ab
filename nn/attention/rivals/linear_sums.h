// The decoding state of linear attention: sums of features times values over the tokens so far,
// whose size does not depend on their number.
#pragma once

#include "autograd/ops.h"
#include "nn/attention/attention.h"

namespace brine::nn {

class LinearSums : public AttentionState {
 public:
  // m features of a key.
  LinearSums(const StateRequest& r, const AttentionShape& shape, int64_t m)
      : AttentionState(r.batch, r.capacity, r.device),
        values(part("values", {r.batch, shape.groups(), m, shape.head_size}, r.dtype)),
        keys(part("keys", {r.batch, shape.groups(), m}, Dtype::f64)) {
    check(shape.causal, "attention: an encoder is not decoded token by token");
  }

  // Prompts, as in AttentionState::begin(): phi_k [B, G, T, m], v [B, G, T, d].
  void fill(int64_t slot, const Tensor& phi_k, const Tensor& v, const Visibility& visible) {
    const int64_t B = phi_k.dim(0);
    begin(slot, B, phi_k.dim(2), visible.lengths);
    linear_attention_state(values.slice(0, slot, B), keys.slice(0, slot, B), phi_k, {}, v, visible);
  }

  // One token of every sequence, which advance() added: phi_q [batch, H, 1, m], phi_k [batch, G,
  // 1, m], v [batch, G, 1, d] -> [batch, H, 1, d].
  Tensor attend(const Tensor& phi_q, const Tensor& phi_k, const Tensor& v, double eps) {
    return linear_attention_step(values, keys, phi_q, phi_k, {}, v, lengths(), eps);
  }

  Tensor& values;  // [batch, G, m, d]
  Tensor& keys;    // f64 [batch, G, m]
};

}  // namespace brine::nn
