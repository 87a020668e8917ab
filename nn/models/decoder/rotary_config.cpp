// Sizes of rotary decoders, their config.json and the tensor names of their files.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/io/json.h"
#include "nn/models/decoder/rotary_decoder.h"
#include "nn/models/hf_config.h"

namespace brine::nn {
namespace {

bool flag(const data::Json& json, const std::string& key, const std::string& source) {
  auto it = json.find(key);
  if (it == json.end() || it->is_null()) return false;
  check(it->is_boolean(), source, ": ", key, " = ", json_text(*it), " is not true or false");
  return it->get<bool>();
}

// The layers that attend to a window: those of "layer_types", or all from "max_window_layers" on.
bool any_layer_slides(const data::Json& json, int64_t layers) {
  auto types = json.find("layer_types");
  if (types != json.end() && types->is_array()) {
    return std::find(types->begin(), types->end(), "sliding_attention") != types->end();
  }
  auto first = json.find("max_window_layers");
  return first == json.end() || !first->is_number_integer() || *first < layers;
}

}  // namespace

void RotaryConfig::describe(data::Schema& s) {
  s.field("vocab_size", vocab_size, "Number of tokens", {.min = 1});
  s.field("hidden_size", hidden_size, "Width of the residual stream", {.min = 1});
  s.field("intermediate_size", intermediate_size, "Inner width of the MLP", {.min = 1});
  s.field("num_hidden_layers", num_hidden_layers, "Number of layers", {.min = 1});
  s.field("num_attention_heads", num_attention_heads, "Heads of queries", {.min = 1});
  s.field("num_key_value_heads", num_key_value_heads,
          "Heads of keys and values, divides num_attention_heads; 0 = num_attention_heads",
          {.min = 0});
  s.field("head_dim", head_dim, "Width of a head, even; 0 = hidden_size / num_attention_heads",
          {.min = 0});
  s.field("max_position_embeddings", max_position_embeddings, "Longest sequence", {.min = 1});
  s.field("rope_theta", rope.rope_theta, "Base of the angles of rotary positions", {.above = 0});
  s.field("rms_norm_eps", rms_norm_eps, "Added to mean squares", {.above = 0});
  s.choice("hidden_act", hidden_act, kActivations, "Of the MLP's gate");
  s.field("initializer_range", initializer_range, "Standard deviation of initial weights",
          {.min = 0});
  s.field("tie_word_embeddings", tie_word_embeddings, "The head is the embedding");
  if (kind->has_attention_bias) {
    s.field("attention_bias", attention_bias, "Biases of the projections of attention");
  }
  if (kind->has_mlp_bias) s.field("mlp_bias", mlp_bias, "Biases of the MLP");
}

void RotaryConfig::validate() const {
  check(head_dim || hidden_size % num_attention_heads == 0, "config: hidden_size ", hidden_size,
        " is not a multiple of num_attention_heads ", num_attention_heads);
  check(!num_key_value_heads || num_attention_heads % num_key_value_heads == 0,
        "config: num_key_value_heads ", num_key_value_heads, " do not divide num_attention_heads ",
        num_attention_heads);
  check(shape().head_size() % 2 == 0, "config: ",
        head_dim ? "head_dim " : "hidden_size / num_attention_heads = ", shape().head_size(),
        " is odd, rotary positions need pairs of features");
}

ModelShape RotaryConfig::shape() const {
  return {.vocab_size = vocab_size,
          .hidden_size = hidden_size,
          .layers = num_hidden_layers,
          .heads = num_attention_heads,
          .inner_size = intermediate_size,
          .max_positions = sliding_window ? std::min(sliding_window, max_position_embeddings)
                                          : max_position_embeddings,
          .causal = true,
          .kv_heads = num_key_value_heads,
          .head_width = head_dim,
          .rotary = true};
}

data::Json RotaryConfig::to_json() const {
  data::Json json = {{"architectures", {kind->architecture}},
                     {"model_type", kind->name},
                     {"vocab_size", vocab_size},
                     {"hidden_size", hidden_size},
                     {"intermediate_size", intermediate_size},
                     {"num_hidden_layers", num_hidden_layers},
                     {"num_attention_heads", num_attention_heads},
                     {"num_key_value_heads", shape().attention().groups()},
                     {"head_dim", shape().head_size()},
                     {"max_position_embeddings", max_position_embeddings},
                     {"hidden_act", data::name_of(hidden_act, kActivations)},
                     {"rms_norm_eps", rms_norm_eps},
                     {"initializer_range", initializer_range},
                     {"attention_dropout", 0.0},
                     {"tie_word_embeddings", tie_word_embeddings},
                     {"use_cache", true},
                     {"bos_token_id", nullptr},
                     {"eos_token_id", nullptr},
                     {"pad_token_id", nullptr}};
  rope.write(json);
  if (kind->has_attention_bias) json["attention_bias"] = attention_bias;
  if (kind->has_mlp_bias) json["mlp_bias"] = mlp_bias;
  write_window(json);
  return json;
}

void RotaryConfig::read(const data::Json& json, const std::string& source) {
  want_plain(json, source);
  std::vector<std::string> required = {"vocab_size",          "hidden_size",
                                       "intermediate_size",   "num_hidden_layers",
                                       "num_attention_heads", "max_position_embeddings"};
  for (const char* key : kind->required) {
    if (key) required.push_back(key);
  }
  data::Schema sizes = data::schema_of(*this);
  read_fields(sizes, json, source, required);
  rope.read(json, source);
  read_window(json, source);
  naming(source, [this] { validate(); });
}

void RotaryConfig::read_window(const data::Json& json, const std::string& source) {
  if (kind->window == WindowKeys::none) return;
  if (kind->window == WindowKeys::switched && !flag(json, "use_sliding_window", source)) return;
  auto it = json.find("sliding_window");
  if (it != json.end() && it->is_null()) return;
  // transformers' default.
  const data::Json window = it == json.end() ? data::Json(4096) : *it;
  check(window.is_number_integer() && window >= 1, source, ": sliding_window = ", json_text(window),
        " is not a number of tokens");
  const int64_t tokens = window.get<int64_t>();
  if (kind->window == WindowKeys::always) {
    sliding_window = tokens;
    return;
  }
  check(tokens >= max_position_embeddings || !any_layer_slides(json, num_hidden_layers), source,
        ": use_sliding_window with ", it == json.end() ? "the usual window of " : "sliding_window ",
        tokens, " below max_position_embeddings ", max_position_embeddings, " is not supported");
}

void RotaryConfig::write_window(data::Json& json) const {
  if (kind->window == WindowKeys::none) return;
  json["sliding_window"] = nullptr;
  if (sliding_window) json["sliding_window"] = sliding_window;
  if (kind->window == WindowKeys::switched) json["use_sliding_window"] = false;
}

void RotaryConfig::set_positions(int64_t positions) {
  check(!sliding_window || positions <= sliding_window, kind->name, ": ", positions,
        " positions, but sliding_window is ", sliding_window);
  max_position_embeddings = positions;
}

std::string RotaryConfig::tensor_name(const std::string& name) const {
  if (name.ends_with(".rotary_emb.inv_freq")) return "";
  for (const char* top : {"embed_tokens.", "layers.", "norm."}) {
    if (name.rfind(top, 0) == 0) return "model." + name;
  }
  return name;
}

std::map<std::string, std::string> RotaryConfig::ties() const {
  if (!tie_word_embeddings) return {};
  return {{"lm_head.weight", "model.embed_tokens.weight"}};
}

}  // namespace brine::nn
