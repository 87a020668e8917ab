// Sizes of small models.
#pragma once

#include <nlohmann/json.hpp>

#include "nn/models/model_config.h"

namespace brine::test {

// An OPT of two layers with three heads of 8 features; `more` of its keys.
inline nn::ModelConfig small_opt(int64_t vocab_size, int64_t positions, double init_std,
                                 const data::Json& more = data::Json::object()) {
  data::Json sizes = {
      {"vocab_size", vocab_size}, {"hidden_size", 24}, {"num_hidden_layers", 2},
      {"num_attention_heads", 3}, {"ffn_dim", 40},     {"max_position_embeddings", positions},
      {"init_std", init_std}};
  sizes.update(more);
  return nn::make_config("opt", sizes);
}

}  // namespace brine::test
