// Queries, keys and values by one product or by three.
#include "nn/layers/projections.h"

namespace brine::nn {

Projections::Heads Projections::operator()(const Tensor& x, int64_t heads, int64_t kv_heads) const {
  const bool one = &query == &key && &query == &value;
  if (!one && (!weight || !weight->value.defined())) {
    return {split_heads(query(x), heads), split_heads(key(x), kv_heads),
            split_heads(value(x), kv_heads)};
  }
  check(one || !query.bias || (bias && bias->value.defined()),
        "projections: the weights are packed, the biases are not");
  const Tensor all = one ? query(x) : linear(x, weight->value, bias ? bias->value : Tensor());
  const int64_t of = heads + 2 * kv_heads;  // all [B, T, of d]
  auto part = [&](const Linear& map, int64_t count, int64_t first) {
    Tensor y = split_heads(all, count, first, of);
    if (one || !map.lora_a) return y;
    const Tensor low = linear(linear(x, *map.lora_a, {}), *map.lora_b, {});
    return add(y, split_heads(low, count));
  };
  return {part(query, heads, 0), part(key, kv_heads, heads),
          part(value, kv_heads, heads + kv_heads)};
}

}  // namespace brine::nn
