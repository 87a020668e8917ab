// The queries, keys and values of a layer. The family names the parts.
#pragma once

#include "nn/layers/layers.h"

namespace brine::nn {

// Three linear maps, with or without biases, of H heads of queries and G heads of keys and values.
// If all three are the same Linear, its outputs are the queries, keys and values in this order.
struct Projections {
  const Linear &query, &key, &value;
  // The three in this order as one product, once a ParameterStore has filled them; null: separate.
  const Packed* weight = nullptr;
  const Packed* bias = nullptr;

  struct Heads {
    Tensor q;     // [B, H, T, d]
    Tensor k, v;  // [B, G, T, d]
  };
  // x [B, T, C]
  Heads operator()(const Tensor& x, int64_t heads, int64_t kv_heads) const;
};

}  // namespace brine::nn
