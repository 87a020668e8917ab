// The learned prior: features of queries and keys whose products share a row's attention out among
// columns or blocks (docs/method.md section 1.6).
#pragma once

#include <functional>
#include <optional>

#include "autograd/ops.h"
#include "nn/attention/attention.h"
#include "nn/layers/random_features.h"

namespace brine::sea {

// exp(d^-1/4 A x + U content + b), of each head of x [B, heads, T, d] -> [B, heads, T, m].
struct PriorFeatures : nn::Module {
  // `projection` [m, d]: A starts at half of it, in every head.
  PriorFeatures(nn::Init& init, int64_t heads, const Tensor& projection, bool rotary);
  Tensor operator()(const Tensor& x, const Tensor& content, const Tensor& lengths) const;

  nn::Parameter& weight;  // A [heads, m, d]
  nn::Parameter& bias;    // b [heads, m]
  // U [heads, m, d], with rotary positions only.
  std::optional<std::reference_wrapper<nn::Parameter>> content;
};

// Of the queries and of the keys of a layer.
struct PriorPair : nn::Module {
  PriorPair(nn::Init& init, const nn::AttentionShape& shape, int64_t features)
      : PriorPair(init, shape, projection(init, shape, features)) {}

  PriorFeatures &query, &key;

 private:
  PriorPair(nn::Init& init, const nn::AttentionShape& shape, const Tensor& R)
      : query(child<PriorFeatures>("query", init, shape.heads, R, shape.rotary)),
        key(child<PriorFeatures>("key", init, shape.groups(), R, shape.rotary)) {}
  static Tensor projection(nn::Init& init, const nn::AttentionShape& shape, int64_t features);
};

}  // namespace brine::sea
