// The attention inputs of a trained causal student while it reads a text, for the benches whose
// figures depend on which keys are kept.
#pragma once

#include "distill/inputs/models.h"

namespace brine::bench {

// `count` tokens of the text file `data` (a short one is repeated).
std::vector<int32_t> text_tokens(const std::string& model, const std::string& data, int64_t count);

// The model at `path`, extended if it has fewer positions.
nn::LoadedModel load_for(const std::string& path, int64_t positions);

// The last layer of a student, or of a model under `attention`, that reads `ids`; extended if it
// has fewer positions. Throws unless it is causal and has a mask.
struct TrainedLayer {
  // With `gradients`, q, k and v are leaves of a tape and the parameters have gradients.
  TrainedLayer(const std::string& path, const std::vector<int32_t>& ids,
               distill::OtherAttention attention = {}, bool gradients = true);
  nn::AttentionInput input() const {
    return {.q = leaves[0],
            .k = leaves[1],
            .v = leaves[2],
            .q_content = contents[0],
            .k_content = contents[1],
            .hidden = dy};
  }

  nn::LoadedModel model;
  nn::Attention* method = nullptr;
  std::vector<Tensor> leaves;    // q [1, H, T, d]; k, v [1, G, T, d]
  std::vector<Tensor> contents;  // q and k before their rotation, or undefined
  double keys_read = 0;
  Tensor dy;  // ones [1, T, H d]
};

}  // namespace brine::bench
