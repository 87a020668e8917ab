// Queries, keys and values by one product or by three.
#include "nn/layers/projections.h"

namespace brine::nn {

Projections::Heads Projections::operator()(const Tensor& x, int64_t heads, int64_t kv_heads) const {
  if (!weight || !weight->value.defined()) {
    return {split_heads(query(x), heads), split_heads(key(x), kv_heads),
            split_heads(value(x), kv_heads)};
  }
  check(!query.bias || (bias && bias->value.defined()),
        "projections: the weights are packed, the biases are not");
  const Tensor all = linear(x, weight->value, bias ? bias->value : Tensor());
  const int64_t of = heads + 2 * kv_heads;  // all [B, T, of d]
  return {split_heads(all, heads, 0, of), split_heads(all, kv_heads, heads, of),
          split_heads(all, kv_heads, heads + kv_heads, of)};
}

}  // namespace brine::nn
