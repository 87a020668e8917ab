// The decoder and its layers, put together as the family's DecoderKind says.
#include "nn/models/decoder/decoder.h"

#include <cmath>

#include "tensor/meter/cost_meter.h"

namespace brine::nn {

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
  if (!call.token_places.defined()) return;
  for (double place : call.token_places.to_vector()) within(int64_t(place) + call.ids.dim(1));
}

Tensor Decoder::embed(const ModelCall& call) {
  check_window(call);
  check_ids(call, config_.kind->name);
  check(!call.type_ids.defined(), config_.kind->name, ": has no segments, so no type_ids");
  Tensor tokens = (*tokens_)(call.ids);
  if (project_in_) tokens = (*project_in_)(tokens);
  return dropout_(positions_.added(tokens, call.token_places), call.random);
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
