// The family qwen3: a rotary decoder with norms of queries and keys.
#include "nn/models/qwen3/qwen3.h"

#include "nn/models/register_family.h"

namespace brine::nn {
namespace {

const RotaryKind kQwen3{.name = "qwen3",
                        .architecture = "Qwen3ForCausalLM",
                        .has_attention_bias = true,
                        .normed_heads = true,
                        .window = WindowKeys::switched,
                        .required = {"num_key_value_heads", "head_dim"}};

}  // namespace

Qwen3Config::Qwen3Config() : RotaryConfig(kQwen3) {}

const RegisterFamily<Qwen3Config, RotaryDecoder> registration("qwen3");

}  // namespace brine::nn
