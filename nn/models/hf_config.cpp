// Helpers for reading Hugging Face's config.json.
#include "nn/models/hf_config.h"

#include <nlohmann/json.hpp>

#include "data/io/json.h"
#include "tensor/error.h"

namespace brine::nn {

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
