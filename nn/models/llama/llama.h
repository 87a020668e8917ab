// Llama 1 to 3 and models of their architecture (SmolLM2, TinyLlama).
#pragma once

#include "nn/models/decoder/rotary_decoder.h"

namespace brine::nn {

struct LlamaConfig : RotaryConfig {
  LlamaConfig();
};

}  // namespace brine::nn
