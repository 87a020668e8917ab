// The family mistral: a rotary decoder without biases.
#include "nn/models/mistral/mistral.h"

#include "nn/models/register_family.h"

namespace brine::nn {
namespace {

const RotaryKind kMistral{.name = "mistral",
                          .architecture = "MistralForCausalLM",
                          .window = WindowKeys::always,
                          .required = {"num_key_value_heads"}};

}  // namespace

MistralConfig::MistralConfig() : RotaryConfig(kMistral) {}

const RegisterFamily<MistralConfig, RotaryDecoder> registration("mistral");

}  // namespace brine::nn
