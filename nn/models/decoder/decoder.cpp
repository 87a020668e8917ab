// The decoder and its layers, put together as the family's DecoderKind says, and its rotary angles.
#include "nn/models/decoder/decoder.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "autograd/ops.h"
#include "data/io/json.h"
#include "nn/models/hf_config.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {

namespace {

// Rotary frequencies: config.json, and the scaling of Llama 3 (Llama Team 2024; Meta's reference
// code).

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

DecoderLayer::DecoderLayer(Init& init, const DecoderConfig& c, const AttentionMethod& attention,
                           const Positions& positions)
    : shape(c.shape().attention()),
      positions(positions),
      norm_first(c.norm_first),
      activation(c.activation),
      dropout(c.dropout) {
  const DecoderKind& kind = *c.kind;
  const DecoderNames& names = kind.names;
  const int64_t inner = c.shape().inner_size;
  auto norm = [&](const std::string& name, int64_t size) {
    return &child<Norm>(name, init, kind.norm, size, c.eps);
  };
  auto inner_map = [&](const char* name) {
    return &child<Linear>(name, init, c.hidden_size, inner, c.mlp_bias, kind.layout);
  };
  auto residual_map = [&](const char* name, int64_t from, bool biased) {
    const double std = init.linear_std;
    if (kind.smaller_outputs) init.linear_std = std / std::sqrt(2.0 * double(c.layers));
    Linear& made = child<Linear>(name, init, from, c.hidden_size, biased, kind.layout);
    init.linear_std = std;
    return &made;
  };
  for (const LayerPart part : kind.order) {
    switch (part) {
      case LayerPart::attention_norm:
        attention_norm = norm(names.attention_norm, c.hidden_size);
        break;
      case LayerPart::inputs:
        make_inputs(init, c);
        break;
      case LayerPart::output:
        output = residual_map(names.output, shape.heads * shape.head_size, c.attention_bias);
        break;
      case LayerPart::method:
        method = &adopt(join(names.attention, ".", attention.name()), attention.make(init, shape));
        if (!kind.normed_heads) break;
        query_norm = norm(join(names.attention, ".q_norm"), shape.head_size);
        key_norm = norm(join(names.attention, ".k_norm"), shape.head_size);
        break;
      case LayerPart::mlp_norm:
        mlp_norm = norm(names.mlp_norm, c.hidden_size);
        break;
      case LayerPart::mlp:
        if (names.gate) gate = inner_map(names.gate);
        up = inner_map(names.up);
        down = residual_map(names.down, inner, c.mlp_bias);
    }
  }
}

void DecoderLayer::make_inputs(Init& init, const DecoderConfig& c) {
  const DecoderNames& names = c.kind->names;
  const int64_t q = shape.heads * shape.head_size, kv = shape.groups() * shape.head_size;
  auto input = [&](const char* name, int64_t to) {
    return &child<Linear>(name, init, c.hidden_size, to, c.attention_bias || c.kind->biased_inputs,
                          c.kind->layout);
  };
  if (!names.key) {
    query = key = value = input(names.query, q + 2 * kv);
    return;
  }
  if (!c.kind->queries_last) query = input(names.query, q);
  key = input(names.key, kv);
  value = input(names.value, kv);
  if (c.kind->queries_last) query = input(names.query, q);
  weight = &pack({&query->weight, &key->weight, &value->weight});
  bias = &pack({query->bias, key->bias, value->bias});
}

Tensor DecoderLayer::attended(const Tensor& x, const ModelCall& call, Tap* tap) {
  const Tensor context =
      attend({.shape = shape,
              .projections =
                  {.query = *query, .key = *key, .value = *value, .weight = weight, .bias = bias},
              .method = *method,
              .positions = &positions,
              .query_norm = query_norm,
              .key_norm = key_norm},
             x, call, tap);
  CostScope scope("projections");
  return (*output)(context);
}

Tensor DecoderLayer::operator()(const Tensor& x, const ModelCall& call, Tap* tap) {
  const FeedForward mlp{.up = *up, .down = *down, .activation = activation, .gate = gate};
  const Tensor in = norm_first ? (*attention_norm)(x) : x;
  const Tensor y = dropout(attended(in, call, tap), call.random);
  if (norm_first) {
    const NormedSum h = mlp_norm->of_sum(x, y);
    return add(h.sum, dropout(mlp(h.normed), call.random));
  }
  const Tensor h = attention_norm->of_sum(x, y).normed;
  return mlp_norm->of_sum(h, dropout(mlp(h), call.random)).normed;
}

Decoder::Decoder(Init& init, const DecoderConfig& config, const AttentionMethod& attention)
    : Model(config.shape(), attention.name()),
      config_(config),
      dropout_(config.kind->keys.embedding_dropout ? config.embedding_dropout : config.dropout) {
  init.linear_std = config.initial;
  const DecoderKind& kind = *config.kind;
  const int64_t C = config.hidden_size, E = config.embedding_size ? config.embedding_size : C;
  auto in_trunk = [&](const char* name) { return join(kind.names.trunk, ".", name); };
  auto make_norm = [&] {
    if (!config.norm_first || config.remove_final_norm) return;
    norm_ = &child<Norm>(in_trunk(kind.names.norm), init, kind.norm, C, config.eps);
  };
  tokens_ =
      &child<Embedding>(in_trunk(kind.names.tokens), init, config.vocab_size, E, config.initial);
  if (config.rotary()) {
    positions_.frequencies = config.rope.frequencies(shape().head_size());
  } else {
    const int64_t rows = config.positions + kind.position_offset;
    positions_ = {
        .table = &child<Embedding>(in_trunk(kind.names.positions), init, rows, C, config.initial),
        .offset = kind.position_offset};
  }
  if (kind.norm_before_layers) make_norm();
  if (E != C) {
    project_in_ = &child<Linear>(in_trunk("project_in"), init, E, C, false);
    project_out_ = &child<Linear>(in_trunk("project_out"), init, C, E, false);
  }
  for (int64_t i = 0; i < config.layers; ++i) {
    layers_.push_back(&child<DecoderLayer>(join(in_trunk(kind.names.layers), ".", i), init, config,
                                           attention, positions_));
  }
  if (!kind.norm_before_layers) make_norm();
  if (!config.tied) head_ = &child<Linear>("lm_head", init, E, config.vocab_size, false);
}

void Decoder::check_window(const ModelCall& call) const {
  const int64_t window = config_.window;
  if (!window || window >= config_.positions) return;
  auto within = [&](int64_t tokens) {
    check(tokens <= window, config_.kind->name, ": ", tokens, " tokens, but sliding_window is ",
          window, " and attention to a window is not supported");
  };
  if (call.ids.rank() == 2) within(call.ids.dim(1));
  if (!call.token_positions.defined()) return;
  for (double first : call.token_positions.to_vector()) within(int64_t(first) + call.ids.dim(1));
}

Tensor Decoder::embed(const ModelCall& call) {
  check_window(call);
  check_ids(call, config_.kind->name);
  check(!call.type_ids.defined(), config_.kind->name, ": has no segments, so no type_ids");
  Tensor tokens = (*tokens_)(call.ids);
  if (project_in_) tokens = (*project_in_)(tokens);
  return dropout_(positions_.added(tokens, call.token_positions), call.random);
}

Tensor Decoder::layer(int64_t i, const Tensor& x, const ModelCall& call, Tap* tap) {
  return (*layers_.at(size_t(i)))(x, call, tap);
}

Tensor Decoder::finish(const Tensor& x) {
  const Tensor y = norm_ ? (*norm_)(x) : x;
  return project_out_ ? (*project_out_)(y) : y;
}

Tensor Decoder::logits(const Tensor& hidden) const {
  CostScope scope("head");
  return head_ ? (*head_)(hidden) : linear(hidden, tokens_->weight, Tensor());
}

std::string Decoder::attention_prefix(int64_t i) const {
  const DecoderNames& names = config_.kind->names;
  return join(names.trunk, ".", names.layers, ".", i, ".", names.attention, ".", attention_name(),
              ".");
}

}  // namespace brine::nn
