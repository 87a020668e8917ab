// Helpers for reading Hugging Face's config.json.
#include "nn/models/hf_config.h"

#include <nlohmann/json.hpp>

#include "data/io/json.h"
#include "tensor/base/error.h"

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

std::vector<std::string> contradictions(const data::Json& json) {
  std::vector<std::string> out;
  auto add = [&](const std::string& first, const data::Json& a, const std::string& second,
                 const data::Json& b) {
    out.push_back(join(first, " = ", json_text(a), " contradicts ", second, " = ", json_text(b),
                       "; ", first, " counts"));
  };
  const data::Json scaling = value_at(json, "rope_scaling");
  const data::Json parameters = value_at(json, "rope_parameters");
  const bool scales = !scaling.is_null() && !scaling.empty();
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
  want_absent(json, source, "quantization_config");
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
