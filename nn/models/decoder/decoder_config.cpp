// Sizes of decoders, their config.json and the tensor names of their files.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/io/json.h"
#include "nn/models/decoder/decoder.h"
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

void DecoderConfig::describe(data::Schema& s) {
  const DecoderKeys& key = kind->keys;
  s.field("vocab_size", vocab_size, "Number of tokens", {.min = 1});
  s.field(key.hidden, hidden_size, "Width of the residual stream", {.min = 1});
  const std::string usual_inner = kind->least_inner ? "" : join("; 0 = 4 ", key.hidden);
  s.field(key.inner, inner_size, "Inner width of the MLP" + usual_inner,
          {.min = double(kind->least_inner)});
  s.field(key.layers, layers, "Number of layers", {.min = 1});
  s.field(key.heads, heads, rotary() ? "Heads of queries" : join("Heads; must divide ", key.hidden),
          {.min = 1});
  if (rotary()) {
    s.field("num_key_value_heads", kv_heads,
            "Heads of keys and values, divides num_attention_heads; 0 = num_attention_heads",
            {.min = 0});
    s.field("head_dim", head_width, "Width of a head, even; 0 = hidden_size / num_attention_heads",
            {.min = 0});
  }
  s.field(key.positions, positions, "Longest sequence", {.min = 1});
  if (rotary()) {
    s.field("rope_theta", rope.rope_theta, "Base of the angles of rotary positions", {.above = 0});
  }
  const std::string where = key.embedding_dropout ? " and MLP" : ", MLP and embedding";
  if (key.dropout) {
    s.field(key.dropout, dropout, "Dropout after attention" + where, {.min = 0, .max = 0.9});
  }
  if (key.embedding_dropout) {
    s.field(key.embedding_dropout, embedding_dropout, "Dropout after the embedding",
            {.min = 0, .max = 0.9});
  }
  if (key.eps) {
    s.field(key.eps, eps, join("Added to ", rotary() ? "mean squares" : "variances"), {.above = 0});
  }
  kind->describe_activation(s, activation);
  s.field(key.initial, initial, "Standard deviation of initial weights", {.min = 0});
  if (kind->has_post_norm) {
    s.field("word_embed_proj_dim", embedding_size,
            "Width of embedding and head, projected if it is not hidden_size; 0 = hidden_size",
            {.min = 0});
    s.field("do_layer_norm_before", norm_first,
            "Norms before attention and MLP (pre-LN), or after (post-LN, without a final norm)");
  }
  s.field("tie_word_embeddings", tied, "The head is the embedding");
  if (kind->has_attention_bias) {
    s.field("attention_bias", attention_bias, "Biases of the projections of attention");
  }
  if (kind->has_mlp_bias) s.field("mlp_bias", mlp_bias, "Biases of the MLP");
}

data::Schema DecoderConfig::file_schema() {
  data::Schema s = data::schema_of(*this);
  if (kind->has_post_norm) s.field("_remove_final_layer_norm", remove_final_norm, "");
  return s;
}

void DecoderConfig::validate() const {
  check(head_width || hidden_size % heads == 0, "config: ", kind->keys.hidden, " ", hidden_size,
        " is not a multiple of ", kind->keys.heads, " ", heads);
  check(!kv_heads || heads % kv_heads == 0, "config: num_key_value_heads ", kv_heads,
        " do not divide num_attention_heads ", heads);
  check(!rotary() || shape().head_size() % 2 == 0, "config: ",
        head_width ? "head_dim " : "hidden_size / num_attention_heads = ", shape().head_size(),
        " is odd, rotary positions need pairs of features");
}

ModelShape DecoderConfig::shape() const {
  return {.vocab_size = vocab_size,
          .hidden_size = hidden_size,
          .layers = layers,
          .heads = heads,
          .inner_size = inner_size ? inner_size : 4 * hidden_size,
          .max_positions = window ? std::min(window, positions) : positions,
          .causal = kind->causal,
          .kv_heads = kv_heads,
          .head_width = head_width,
          .rotary = rotary()};
}

data::Json DecoderConfig::to_json() const {
  DecoderConfig whole = *this;  // with the values that 0 stands for
  whole.kv_heads = shape().attention().groups();
  whole.head_width = shape().head_size();
  if (!embedding_size) whole.embedding_size = hidden_size;
  data::Json json = {{"architectures", {kind->architecture}}, {"model_type", kind->name}};
  json.update(whole.file_schema().to_json());
  json.update(parse_ordered_json(kind->written));
  if (!inner_size) json[kind->keys.inner] = nullptr;
  if (rotary()) rope.write(json);
  if (kind->window == WindowKeys::none) return json;
  json["sliding_window"] = nullptr;
  if (window) json["sliding_window"] = window;
  if (kind->window == WindowKeys::switched) json["use_sliding_window"] = false;
  return json;
}

void DecoderConfig::read(const data::Json& given, const std::string& source) {
  data::Json json = given;
  for (const auto& [general, gpt2_key] : kGpt2Names) {
    auto it = given.find(general);
    if (it != given.end() && !it->is_null()) json[gpt2_key] = *it;
  }
  want_plain(json, source);
  if (!rotary()) want_learned_positions(json, source);
  const data::Json supported = parse_ordered_json(kind->supported);
  for (const auto& [key, value] : supported.items()) want(json, source, key, value);
  const DecoderKeys& key = kind->keys;
  std::vector<std::string> required = {"vocab_size", key.hidden, key.layers, key.heads,
                                       key.positions};
  if (kind->least_inner) required.push_back(key.inner);
  required.insert(required.end(), kind->required.begin(), kind->required.end());
  data::Schema schema = file_schema();
  read_fields(schema, json, source, required);
  if (embedding_size == hidden_size) embedding_size = 0;
  if (rotary()) rope.read(json, source);
  read_window(json, source);
  naming(source, [this] { validate(); });
}

void DecoderConfig::read_window(const data::Json& json, const std::string& source) {
  if (kind->window == WindowKeys::none) return;
  if (kind->window == WindowKeys::switched && !flag(json, "use_sliding_window", source)) return;
  auto it = json.find("sliding_window");
  if (it != json.end() && it->is_null()) return;
  // transformers' default.
  const data::Json size = it == json.end() ? data::Json(4096) : *it;
  check(size.is_number_integer() && size >= 1, source, ": sliding_window = ", json_text(size),
        " is not a number of tokens");
  const int64_t tokens = size.get<int64_t>();
  if (kind->window == WindowKeys::always) {
    window = tokens;
    return;
  }
  check(tokens >= positions || !any_layer_slides(json, layers), source,
        ": use_sliding_window with ",
        it == json.end() ? "the default window of " : "sliding_window ", tokens,
        " below max_position_embeddings ", positions, " is not supported");
}

void DecoderConfig::set_positions(int64_t count) {
  check(!window || count <= window, kind->name, ": ", count, " positions, but sliding_window is ",
        window);
  positions = count;
}

std::string DecoderConfig::tensor_name(const std::string& name) const {
  auto ends = [&](const std::string& end) { return name.ends_with(end); };
  auto starts = [&](const std::string& start) { return name.starts_with(start); };
  if (std::any_of(kind->unused.begin(), kind->unused.end(), ends)) return "";
  if (std::none_of(kind->bare.begin(), kind->bare.end(), starts)) return name;
  const std::string trunk = kind->names.trunk;
  return trunk.substr(0, trunk.find('.')) + "." + name;
}

std::map<std::string, std::string> DecoderConfig::ties() const {
  if (!tied) return {};
  return {{"lm_head.weight", join(kind->names.trunk, ".", kind->names.tokens, ".weight")}};
}

}  // namespace brine::nn
