// Massive activations of a teacher (Sun et al. 2024): a few features of the first token that are
// thousands of times as large as others, in most pretrained decoders.
#pragma once

#include <optional>
#include <string>

#include "nn/models/model.h"

namespace brine::distill {

struct MassiveActivation {
  int64_t layer = 0, feature = 0;  // of the first token in the layer's output
  double value = 0;
  double usual = 0;  // root of the mean square of the other tokens' features
  double share = 0;  // of the first token in the squares of all tokens

  std::string text() const;  // "feature 12 of the first token is 1300 in layer 3, others .8"
};

// That of the layer where the first of 64 tokens has the largest share in the squares, if it is
// more than half. Squared distances of layer outputs (the loss kd) are then of that token alone.
// Empty for an encoder.
std::optional<MassiveActivation> massive_activation(nn::Model& teacher);

}  // namespace brine::distill
