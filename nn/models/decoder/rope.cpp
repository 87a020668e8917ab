// Rotary frequencies: config.json, and the scaling of Llama 3 (Llama Team 2024; Meta's reference
// code).
#include "nn/models/decoder/rope.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "autograd/ops.h"
#include "data/io/json.h"
#include "nn/models/hf_config.h"

namespace brine::nn {
namespace {

constexpr double kPi = 3.14159265358979323846;

// The entry of config.json that describes the rotation; null when there is none. transformers takes
// rope_scaling if both are there, also over a rope_parameters of a newer release.
std::pair<std::string, data::Json> described(const data::Json& json) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    auto it = json.find(key);
    const bool none = it == json.end() || it->is_null() || (it->is_object() && it->empty());
    if (!none) return {key, *it};
  }
  return {"rope_scaling", nullptr};
}

RopeType type_of(const data::Json& entry, const std::string& where) {
  auto it = entry.find("rope_type");
  if (it == entry.end()) it = entry.find("type");  // its name in older files
  if (it == entry.end()) return RopeType::unscaled;
  const auto type = it->is_string() ? data::value_of(it->get<std::string>(), kRopeTypes)
                                    : std::optional<RopeType>();
  check(type.has_value(), where, ": type ", json_text(*it),
        " is not supported, only \"default\", \"linear\" and \"llama3\"");
  return *type;
}

// Sets `to` from a number above 0; null counts as absent.
template <class T>
bool read_number(const data::Json& json, const std::string& key, const std::string& where, T& to) {
  auto it = json.find(key);
  if (it == json.end() || it->is_null()) return false;
  check(it->is_number() && std::isfinite(it->get<double>()) && it->get<double>() > 0, where, ": ",
        key, " = ", json_text(*it), " is not a number above 0");
  to = T(it->get<double>());
  return true;
}

void refuse_other_keys(const data::Json& entry, const std::string& where) {
  for (const auto& [key, value] : entry.items()) {
    const bool known = key == "rope_type" || key == "type" || key == "rope_theta" ||
                       key == "factor" || key == "low_freq_factor" || key == "high_freq_factor" ||
                       key == "original_max_position_embeddings" || value.is_null() ||
                       (key == "partial_rotary_factor" && value == 1);
    check(known, where, ": ", key, " = ", json_text(value), " is not supported");
  }
}

}  // namespace

Tensor Rope::frequencies(int64_t features) const {
  Tensor all = rotary_frequencies(features, rope_theta);
  for (int64_t i = 0; i < all.numel(); ++i) {
    double& frequency = all.data<double>()[i];
    if (rope_type == RopeType::linear) frequency /= factor;
    if (rope_type != RopeType::llama3) continue;
    const double rotations = double(original_max_position_embeddings) * frequency / (2 * kPi);
    const double kept = (rotations - low_freq_factor) / (high_freq_factor - low_freq_factor);
    const double share = std::clamp(kept, 0.0, 1.0);
    frequency *= share + (1 - share) / factor;
  }
  return all;
}

void Rope::read(const data::Json& json, const std::string& source) {
  want(json, source, "partial_rotary_factor", 1);
  want(json, source, "rope_interleaved", false);
  read_number(json, "rope_theta", source, rope_theta);
  const auto [key, entry] = described(json);
  if (entry.is_null()) return;
  const std::string where = source + ": " + key;
  check(entry.is_object(), where, " = ", json_text(entry), " is not an object");
  rope_type = type_of(entry, where);
  refuse_other_keys(entry, where);
  read_number(entry, "rope_theta", where, rope_theta);
  if (rope_type == RopeType::unscaled) return;
  check(read_number(entry, "factor", where, factor), where, ": has no factor");
  if (rope_type != RopeType::llama3) return;
  const bool both = read_number(entry, "low_freq_factor", where, low_freq_factor) &&
                    read_number(entry, "high_freq_factor", where, high_freq_factor);
  check(both, where, ": has no low_freq_factor or no high_freq_factor");
  check(low_freq_factor < high_freq_factor, where, ": low_freq_factor ", low_freq_factor,
        " is not below high_freq_factor ", high_freq_factor);
  const char* original = "original_max_position_embeddings";
  check(read_number(entry, original, where, original_max_position_embeddings) ||
            read_number(json, original, source, original_max_position_embeddings),
        where, ": has no ", original);
}

void Rope::write(data::Json& json) const {
  json["rope_theta"] = rope_theta;
  json["rope_scaling"] = nullptr;
  if (rope_type == RopeType::unscaled) return;
  data::Json& entry = json["rope_scaling"] = data::Json::object();
  entry["rope_type"] = data::name_of(rope_type, kRopeTypes);
  entry["factor"] = factor;
  if (rope_type != RopeType::llama3) return;
  entry["low_freq_factor"] = low_freq_factor;
  entry["high_freq_factor"] = high_freq_factor;
  entry["original_max_position_embeddings"] = original_max_position_embeddings;
}

}  // namespace brine::nn
