// The family llama: a rotary decoder with optional biases.
#include "nn/models/llama/llama.h"

#include "nn/models/register_family.h"

namespace brine::nn {
namespace {

const RotaryKind kLlama{.name = "llama",
                        .architecture = "LlamaForCausalLM",
                        .has_attention_bias = true,
                        .has_mlp_bias = true};

}  // namespace

LlamaConfig::LlamaConfig() : RotaryConfig(kLlama) {}

const RegisterFamily<LlamaConfig, RotaryDecoder> registration("llama");

}  // namespace brine::nn
