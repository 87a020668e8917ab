// Qwen 2 and 2.5 (Yang et al. 2024).
#pragma once

#include "nn/models/decoder/rotary_decoder.h"

namespace brine::nn {

struct Qwen2Config : RotaryConfig {
  Qwen2Config();
};

}  // namespace brine::nn
