// GPT-2's sizes, its config.json and the tensor names of its files.
#include <nlohmann/json.hpp>

#include "nn/models/gpt2/gpt2.h"
#include "nn/models/hf_config.h"

namespace brine::nn {

void Gpt2Config::describe(data::Schema& s) {
  s.field("vocab_size", vocab_size, "Number of tokens", {.min = 1});
  s.field("n_positions", n_positions, "Longest sequence", {.min = 1});
  s.field("n_embd", n_embd, "Width of the residual stream", {.min = 1});
  s.field("n_layer", n_layer, "Number of layers", {.min = 1});
  s.field("n_head", n_head, "Heads; must divide n_embd", {.min = 1});
  s.field("n_inner", n_inner, "Inner width of the MLP; 0 = 4 n_embd", {.min = 0});
  s.choice("activation_function", activation_function, kActivations,
           "Between the MLP's parts; gelu_new approximates gelu by a tanh");
  s.field("resid_pdrop", resid_pdrop, "Dropout after attention and MLP", {.min = 0, .max = 0.9});
  s.field("embd_pdrop", embd_pdrop, "Dropout after the embedding", {.min = 0, .max = 0.9});
  s.field("layer_norm_epsilon", layer_norm_epsilon, "Added to variances", {.above = 0});
  s.field("initializer_range", initializer_range, "Standard deviation of initial weights",
          {.min = 0});
  s.field("tie_word_embeddings", tie_word_embeddings, "The head is the embedding");
}

void Gpt2Config::validate() const {
  check(n_embd % n_head == 0, "config: n_embd ", n_embd, " is not a multiple of n_head ", n_head);
}

ModelShape Gpt2Config::shape() const {
  return {.vocab_size = vocab_size,
          .hidden_size = n_embd,
          .layers = n_layer,
          .heads = n_head,
          .inner_size = n_inner ? n_inner : 4 * n_embd,
          .max_positions = n_positions,
          .causal = true};
}

data::Json Gpt2Config::to_json() const {
  data::Json json = {{"architectures", {"GPT2LMHeadModel"}},
                     {"model_type", "gpt2"},
                     {"vocab_size", vocab_size},
                     {"n_positions", n_positions},
                     {"n_embd", n_embd},
                     {"n_layer", n_layer},
                     {"n_head", n_head},
                     {"n_inner", nullptr},
                     {"activation_function", data::name_of(activation_function, kActivations)},
                     {"resid_pdrop", resid_pdrop},
                     {"embd_pdrop", embd_pdrop},
                     {"attn_pdrop", 0.0},
                     {"layer_norm_epsilon", layer_norm_epsilon},
                     {"initializer_range", initializer_range},
                     {"scale_attn_weights", true},
                     {"scale_attn_by_inverse_layer_idx", false},
                     {"reorder_and_upcast_attn", false},
                     {"tie_word_embeddings", tie_word_embeddings},
                     {"use_cache", true},
                     {"bos_token_id", nullptr},
                     {"eos_token_id", nullptr}};
  if (n_inner) json["n_inner"] = n_inner;
  return json;
}

void Gpt2Config::read(const data::Json& given, const std::string& source) {
  data::Json json = given;
  for (const auto& [general, gpt2_key] : kGpt2Names) {
    auto it = given.find(general);
    if (it != given.end() && !it->is_null()) json[gpt2_key] = *it;
  }
  want_plain(json, source);
  want_learned_positions(json, source);
  want(json, source, "scale_attn_weights", true);
  want(json, source, "scale_attn_by_inverse_layer_idx", false);
  data::Schema sizes = data::schema_of(*this);
  read_fields(sizes, json, source, {"vocab_size", "n_positions", "n_embd", "n_layer", "n_head"});
  naming(source, [this] { validate(); });
}

std::string Gpt2Config::tensor_name(const std::string& name) const {
  if (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")) return "";
  for (const char* top : {"wte.", "wpe.", "h.", "ln_f."}) {
    if (name.rfind(top, 0) == 0) return "transformer." + name;
  }
  return name;
}

std::map<std::string, std::string> Gpt2Config::ties() const {
  if (!tie_word_embeddings) return {};
  return {{"lm_head.weight", "transformer.wte.weight"}};
}

}  // namespace brine::nn
