// Sizes of small models.
#pragma once

#include "nn/models/opt/opt.h"

namespace brine::test {

// An OPT of two layers with three heads of 8 features.
inline nn::OptConfig small_opt(int64_t vocab_size, int64_t positions, double init_std) {
  return {.vocab_size = vocab_size,
          .hidden_size = 24,
          .num_hidden_layers = 2,
          .num_attention_heads = 3,
          .ffn_dim = 40,
          .max_position_embeddings = positions,
          .init_std = init_std};
}

}  // namespace brine::test
