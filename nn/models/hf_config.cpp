// Helpers for reading Hugging Face's config.json.
#include "nn/models/hf_config.h"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "data/io/json.h"

namespace brine::nn {
namespace {

// The value of a key, null if it is missing.
data::Json value_at(const data::Json& json, const char* key) {
  return json.is_object() ? json.value(key, data::Json()) : data::Json();
}

// What an entry says of the rotation, under the names of newer files.
data::Json rotation_of(const data::Json& entry) {
  data::Json out = entry;
  if (!out.is_object()) return out;
  if (!out.contains("rope_type") && out.contains("type")) out["rope_type"] = out["type"];
  for (const char* key : {"type", "rope_theta"}) out.erase(key);
  return out;
}

// Whatever the order of their keys.
bool differ(const data::Json& a, const data::Json& b) {
  return !a.is_null() && !b.is_null() && nlohmann::json(a) != nlohmann::json(b);
}

}  // namespace

data::Json usual_spelling(data::Json json) {
  // Other names of transformers for an activation.
  static const std::map<data::Json, const char*> kSame = {{"swish", "silu"},
                                                          {"gelu_python", "gelu"},
                                                          {"gelu_fast", "gelu_new"},
                                                          {"gelu_accurate", "gelu_new"},
                                                          {"gelu_python_tanh", "gelu_new"},
                                                          {"gelu_pytorch_tanh", "gelu_new"}};
  constexpr double kExact = int64_t{1} << 53;
  for (auto& [key, value] : json.items()) {
    const bool is_float = value.is_number_float();
    const double number = is_float ? value.get<double>() : 0.5;
    const auto same = kSame.find(value);
    if (number == std::trunc(number) && std::abs(number) <= kExact) value = int64_t(number);
    if (value.is_structured()) value = usual_spelling(value);
    const bool none = value == false || (value.is_object() && value.empty());
    if ((key == "rope_scaling" || key == "rope_parameters") && none) value = nullptr;
    if ((key == "hidden_act" || key == "activation_function") && same != kSame.end())
      value = same->second;
  }
  return json;
}

std::vector<std::string> contradictions(const data::Json& json) {
  std::vector<std::string> out;
  auto add = [&](const std::string& first, const data::Json& a, const std::string& second,
                 const data::Json& b) {
    out.push_back(join(first, " = ", json_text(a), " contradicts ", second, " = ", json_text(b),
                       "; ", first, " counts"));
  };
  const data::Json scaling = value_at(json, "rope_scaling");
  const data::Json parameters = value_at(json, "rope_parameters");
  const bool scales = scaling.is_object() && !scaling.empty();
  if (scales && differ(rotation_of(scaling), rotation_of(parameters)))
    add("rope_scaling", scaling, "rope_parameters", parameters);
  if (scales) {  // theta of rope_parameters does not count then
    data::Json theta = value_at(scaling, "rope_theta");
    if (theta.is_null()) theta = value_at(json, "rope_theta");
    if (theta.is_null()) theta = 10000.0;
    const data::Json other = value_at(parameters, "rope_theta");
    if (differ(theta, other)) add("rope_theta", theta, "rope_parameters.rope_theta", other);
  }
  const std::string entry = scales ? "rope_scaling" : "rope_parameters";
  const data::Json& rotation = scales ? scaling : parameters;
  for (const char* key : {"rope_theta", "original_max_position_embeddings"}) {
    const data::Json inner = value_at(rotation, key), outer = value_at(json, key);
    if (differ(inner, outer)) add(entry + "." + key, inner, key, outer);
  }
  const data::Json type = value_at(rotation, "rope_type"), old = value_at(rotation, "type");
  if (differ(type, old)) add(entry + ".rope_type", type, entry + ".type", old);
  for (const auto& [first, second] : kGpt2Names) {
    const data::Json a = value_at(json, first), b = value_at(json, second);
    if (differ(a, b)) add(first, a, second, b);
  }
  return out;
}

void want(const data::Json& json, const std::string& source, const std::string& key,
          const data::Json& value) {
  auto it = json.find(key);
  if (it == json.end() || it->is_null()) return;
  check(*it == value, source, ": ", key, " = ", it->dump(), " is not supported, only ",
        json_text(value));
}

void want_absent(const data::Json& json, const std::string& source, const std::string& key) {
  auto it = json.find(key);
  check(it == json.end() || it->is_null(), source, ": ", key, " is not supported");
}

void want_plain(const data::Json& json, const std::string& source) {
  want(json, source, "add_cross_attention", false);
  want_absent(json, source, "per_layer_config");
  for (const char* key : {"quantization_config", "quantization"}) {  // MLX writes the second
    auto it = json.find(key);
    check(it == json.end() || it->is_null(), source, ": ", key,
          " is not supported: the weights are quantised; give the model in f32, bf16 or f16 "
          "(mlx_lm.convert --dequantize writes one of MLX's) or a GGUF file");
  }
}

void want_learned_positions(const data::Json& json, const std::string& source) {
  want(json, source, "position_embedding_type", "absolute");
  for (const char* key : {"rope_theta", "rope_scaling", "rope_parameters", "rotary_dim",
                          "rotary_pct", "partial_rotary_factor"}) {
    want_absent(json, source, key);
  }
}

void read_fields(data::Schema& schema, const data::Json& json, const std::string& source,
                 const std::vector<std::string>& required) {
  for (const data::Schema::Field& field : schema.fields()) {
    auto it = json.find(field.key);
    if (it == json.end() || it->is_null()) continue;
    schema.set(field.key, *it, source + ": " + field.key);
  }
  for (const std::string& key : required) check(json.contains(key), source, ": has no ", key);
}

}  // namespace brine::nn
