// The families of decoders.
#include "nn/models/decoder/decoder.h"
#include "nn/models/register_family.h"

namespace brine::nn {
namespace {

// ---- OPT: learned positions, pre-LN, or post-LN with a narrower embedding (350M)
const DecoderKind kOpt{
    .name = "opt",
    .architecture = "OPTForCausalLM",
    .keys = {.inner = "ffn_dim", .initial = "init_std", .eps = nullptr, .dropout = "dropout"},
    .names = {.trunk = "model.decoder",
              .positions = "embed_positions",
              .norm = "final_layer_norm",
              .output = "self_attn.out_proj",
              .gate = nullptr,
              .up = "fc1",
              .down = "fc2",
              .attention_norm = "self_attn_layer_norm",
              .mlp_norm = "final_layer_norm"},
    .norm = NormKind::layer,
    .position_offset = 2,
    .has_post_norm = true,
    .order = {LayerPart::inputs, LayerPart::output, LayerPart::method, LayerPart::attention_norm,
              LayerPart::mlp, LayerPart::mlp_norm},
    .queries_last = true,
    .norm_before_layers = true,
    .describe_activation =
        [](data::Schema& s, Activation& a) {
          s.choice("activation_function", a, kActivations, "Between the MLP's parts");
        },
    .supported = R"({"enable_bias": true, "layer_norm_elementwise_affine": true})",
    .written = R"({"enable_bias": true, "layer_norm_elementwise_affine": true, "layerdrop": 0.0,
                   "attention_dropout": 0.0, "use_cache": true, "bos_token_id": 2,
                   "eos_token_id": 2, "pad_token_id": 1})",
    .bare = {"decoder."},
    .unused = {}};

// ---- GPT-2: learned positions, one product for queries, keys and values, weights [in, out]
const DecoderKind kGpt2{
    .name = "gpt2",
    .architecture = "GPT2LMHeadModel",
    .keys = {.hidden = "n_embd",
             .layers = "n_layer",
             .heads = "n_head",
             .inner = "n_inner",
             .positions = "n_positions",
             .eps = "layer_norm_epsilon",
             .dropout = "resid_pdrop",
             .embedding_dropout = "embd_pdrop"},
    .names = {.trunk = "transformer",
              .tokens = "wte",
              .positions = "wpe",
              .layers = "h",
              .norm = "ln_f",
              .attention = "attn",
              .query = "attn.c_attn",
              .key = nullptr,
              .value = nullptr,
              .output = "attn.c_proj",
              .gate = nullptr,
              .up = "mlp.c_fc",
              .down = "mlp.c_proj",
              .attention_norm = "ln_1",
              .mlp_norm = "ln_2"},
    .norm = NormKind::layer,
    .layout = WeightLayout::in_out,
    .smaller_outputs = true,
    .least_inner = 0,
    .order = {LayerPart::attention_norm, LayerPart::inputs, LayerPart::output, LayerPart::method,
              LayerPart::mlp_norm, LayerPart::mlp},
    .describe_activation =
        [](data::Schema& s, Activation& a) {
          s.choice("activation_function", a, kActivations,
                   "Between the MLP's parts; gelu_new approximates gelu by a tanh");
        },
    .supported = R"({"scale_attn_weights": true, "scale_attn_by_inverse_layer_idx": false})",
    .written = R"({"scale_attn_weights": true, "scale_attn_by_inverse_layer_idx": false,
                   "attn_pdrop": 0.0, "reorder_and_upcast_attn": false, "use_cache": true,
                   "bos_token_id": null, "eos_token_id": null})",
    .bare = {"wte.", "wpe.", "h.", "ln_f."},
    .unused = {".attn.bias", ".attn.masked_bias"}};

// ---- Llama 1 to 3, SmolLM2, TinyLlama, and those that differ from them in biases, norms of heads
// or windows: RMSNorm, rotary positions, grouped queries, a gated MLP
void describe_gate(data::Schema& s, Activation& a) {
  s.choice("hidden_act", a, kActivations, "Of the MLP's gate");
}

constexpr const char* kWritten = R"({"attention_dropout": 0.0, "use_cache": true,
    "bos_token_id": null, "eos_token_id": null, "pad_token_id": null})";

const DecoderKind kLlama{.name = "llama",
                         .architecture = "LlamaForCausalLM",
                         .has_attention_bias = true,
                         .has_mlp_bias = true,
                         .describe_activation = describe_gate,
                         .written = kWritten};

// Mistral 7B and later dense models (Jiang et al. 2023), for sequences within their window.
const DecoderKind kMistral{.name = "mistral",
                           .architecture = "MistralForCausalLM",
                           .window = WindowKeys::always,
                           .describe_activation = describe_gate,
                           .required = {"num_key_value_heads"},
                           .written = kWritten};

// Qwen 2 and 2.5 (Yang et al. 2024).
const DecoderKind kQwen2{.name = "qwen2",
                         .architecture = "Qwen2ForCausalLM",
                         .biased_inputs = true,
                         .window = WindowKeys::switched,
                         .describe_activation = describe_gate,
                         .required = {"num_key_value_heads"},
                         .written = kWritten};

// Qwen 3, dense (Yang et al. 2025).
const DecoderKind kQwen3{.name = "qwen3",
                         .architecture = "Qwen3ForCausalLM",
                         .has_attention_bias = true,
                         .normed_heads = true,
                         .window = WindowKeys::switched,
                         .describe_activation = describe_gate,
                         .required = {"num_key_value_heads", "head_dim"},
                         .written = kWritten};

DecoderConfig learned_config(const DecoderKind& kind, Activation activation, int64_t inner_size) {
  return {.kind = &kind,
          .inner_size = inner_size,
          .activation = activation,
          .attention_bias = true,
          .mlp_bias = true,
          .tied = true};
}

DecoderConfig rotary_config(const DecoderKind& kind) {
  return {.kind = &kind, .inner_size = 704, .eps = 1e-6};
}

}  // namespace

// With default sizes.
const RegisterFamily<DecoderConfig, Decoder> registration[] = {
    {kOpt.name, learned_config(kOpt, Activation::relu, 1024)},
    {kGpt2.name, learned_config(kGpt2, Activation::gelu_tanh, 0)},
    {kLlama.name, rotary_config(kLlama)},
    {kMistral.name, rotary_config(kMistral)},
    {kQwen2.name, rotary_config(kQwen2)},
    {kQwen3.name, rotary_config(kQwen3)}};

}  // namespace brine::nn
