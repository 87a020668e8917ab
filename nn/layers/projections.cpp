// Queries, keys and values by one product or by three.
#include "nn/layers/projections.h"

namespace brine::nn {

Projections::Heads Projections::operator()(const Tensor& x, int64_t heads, int64_t kv_heads) const {
  if (!weight || !weight->value.defined()) {
    return {split_heads(query(x), heads), split_heads(key(x), kv_heads),
            split_heads(value(x), kv_heads)};
  }
  const Tensor all = linear(x, weight->value, bias ? bias->value : Tensor());
  if (heads == kv_heads) {  // [B, T, 3 H d]
    return {split_heads(all, heads, 0, 3), split_heads(all, heads, 1, 3),
            split_heads(all, heads, 2, 3)};
  }
  const int64_t d = all.dim(2) / (heads + 2 * kv_heads);  // [B, T, (H + 2 G) d]
  auto part = [&](int64_t first, int64_t count) {
    return split_heads(slice(all, 2, first * d, count * d), count);
  };
  return {part(0, heads), part(heads, kv_heads), part(heads + kv_heads, kv_heads)};
}

}  // namespace brine::nn
