// Qwen 3, dense (Yang et al. 2025).
#pragma once

#include "nn/models/decoder/rotary_decoder.h"

namespace brine::nn {

struct Qwen3Config : RotaryConfig {
  Qwen3Config();
};

}  // namespace brine::nn
