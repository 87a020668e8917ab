// OPT's sizes, its config.json and the tensor names of its files.
#include <nlohmann/json.hpp>

#include "nn/models/hf_config.h"
#include "nn/models/opt/opt.h"

namespace brine::nn {

void OptConfig::describe(data::Schema& s) {
  s.field("vocab_size", vocab_size, "Number of tokens", {.min = 1});
  s.field("hidden_size", hidden_size, "Width of the residual stream", {.min = 1});
  s.field("num_hidden_layers", num_hidden_layers, "Number of layers", {.min = 1});
  s.field("num_attention_heads", num_attention_heads, "Heads; must divide hidden_size", {.min = 1});
  s.field("ffn_dim", ffn_dim, "Inner width of the MLP", {.min = 1});
  s.field("max_position_embeddings", max_position_embeddings, "Longest sequence", {.min = 1});
  s.field("dropout", dropout, "Dropout after attention, MLP and embedding", {.min = 0, .max = 0.9});
  s.field("init_std", init_std, "Standard deviation of initial weights", {.min = 0});
  s.field("word_embed_proj_dim", word_embed_proj_dim,
          "Width of embedding and head, projected if it is not hidden_size; 0 = hidden_size",
          {.min = 0});
  s.field("do_layer_norm_before", do_layer_norm_before,
          "Norms before attention and MLP (pre-LN), or after (post-LN, without a final norm)");
  s.field("tie_word_embeddings", tie_word_embeddings, "The head is the embedding");
  s.choice("activation_function", activation_function, kActivations, "Between the MLP's parts");
}

void OptConfig::validate() const {
  check(hidden_size % num_attention_heads == 0, "config: hidden_size ", hidden_size,
        " is not a multiple of num_attention_heads ", num_attention_heads);
}

ModelShape OptConfig::shape() const {
  return {.vocab_size = vocab_size,
          .hidden_size = hidden_size,
          .layers = num_hidden_layers,
          .heads = num_attention_heads,
          .inner_size = ffn_dim,
          .max_positions = max_position_embeddings,
          .causal = true};
}

data::Json OptConfig::to_json() const {
  return {{"architectures", {"OPTForCausalLM"}},
          {"model_type", "opt"},
          {"vocab_size", vocab_size},
          {"hidden_size", hidden_size},
          {"num_hidden_layers", num_hidden_layers},
          {"num_attention_heads", num_attention_heads},
          {"ffn_dim", ffn_dim},
          {"max_position_embeddings", max_position_embeddings},
          {"word_embed_proj_dim", embedding_size()},
          {"dropout", dropout},
          {"attention_dropout", 0.0},
          {"activation_function", data::name_of(activation_function, kActivations)},
          {"do_layer_norm_before", do_layer_norm_before},
          {"layer_norm_elementwise_affine", true},
          {"_remove_final_layer_norm", remove_final_layer_norm},
          {"enable_bias", true},
          {"layerdrop", 0.0},
          {"init_std", init_std},
          {"tie_word_embeddings", tie_word_embeddings},
          {"use_cache", true},
          {"bos_token_id", 2},
          {"eos_token_id", 2},
          {"pad_token_id", 1}};
}

void OptConfig::read(const data::Json& json, const std::string& source) {
  want_plain(json, source);
  want_learned_positions(json, source);
  want(json, source, "enable_bias", true);
  want(json, source, "layer_norm_elementwise_affine", true);
  data::Schema sizes = data::schema_of(*this);
  sizes.field("_remove_final_layer_norm", remove_final_layer_norm, "");
  read_fields(sizes, json, source,
              {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "ffn_dim",
               "max_position_embeddings"});
  if (word_embed_proj_dim == hidden_size) word_embed_proj_dim = 0;
  naming(source, [this] { validate(); });
}

std::string OptConfig::tensor_name(const std::string& name) const {
  return name.rfind("decoder.", 0) == 0 ? "model." + name : name;
}

std::map<std::string, std::string> OptConfig::ties() const {
  if (!tie_word_embeddings) return {};
  return {{"lm_head.weight", "model.decoder.embed_tokens.weight"}};
}

}  // namespace brine::nn
