// The family qwen2: a rotary decoder with biases of queries, keys and values.
#include "nn/models/qwen2/qwen2.h"

#include "nn/models/register_family.h"

namespace brine::nn {
namespace {

const RotaryKind kQwen2{.name = "qwen2",
                        .architecture = "Qwen2ForCausalLM",
                        .biased_inputs = true,
                        .window = WindowKeys::switched,
                        .required = {"num_key_value_heads"}};

}  // namespace

Qwen2Config::Qwen2Config() : RotaryConfig(kQwen2) {}

const RegisterFamily<Qwen2Config, RotaryDecoder> registration("qwen2");

}  // namespace brine::nn
