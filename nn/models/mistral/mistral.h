// Mistral 7B and later dense models (Jiang et al. 2023), for sequences within their window.
#pragma once

#include "nn/models/decoder/rotary_decoder.h"

namespace brine::nn {

struct MistralConfig : RotaryConfig {
  MistralConfig();
};

}  // namespace brine::nn
