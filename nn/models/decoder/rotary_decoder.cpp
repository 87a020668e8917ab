// The decoder that Llama, Mistral and Qwen share.
#include "nn/models/decoder/rotary_decoder.h"

#include "tensor/meter/cost_meter.h"

namespace brine::nn {

RotaryAttention::RotaryAttention(Init& init, const RotaryConfig& c,
                                 const AttentionMethod& attention, const Positions& positions)
    : shape(c.shape().attention()),
      q_proj(child<Linear>("q_proj", init, c.hidden_size, shape.heads * shape.head_size,
                           c.attention_bias || c.kind->biased_inputs)),
      k_proj(child<Linear>("k_proj", init, c.hidden_size, shape.groups() * shape.head_size,
                           c.attention_bias || c.kind->biased_inputs)),
      v_proj(child<Linear>("v_proj", init, c.hidden_size, shape.groups() * shape.head_size,
                           c.attention_bias || c.kind->biased_inputs)),
      o_proj(child<Linear>("o_proj", init, shape.heads * shape.head_size, c.hidden_size,
                           c.attention_bias)),
      qkv_weight(pack({&q_proj.weight, &k_proj.weight, &v_proj.weight})),
      qkv_bias(pack({q_proj.bias, k_proj.bias, v_proj.bias})),
      positions(positions),
      method(adopt(attention.name(), attention.make(init, shape))) {
  if (!c.kind->normed_heads) return;
  q_norm = &child<Norm>("q_norm", init, NormKind::rms, shape.head_size, c.rms_norm_eps);
  k_norm = &child<Norm>("k_norm", init, NormKind::rms, shape.head_size, c.rms_norm_eps);
}

Tensor RotaryAttention::operator()(const Tensor& x, const ModelCall& call, Tap* tap) {
  const Tensor context = attend({.shape = shape,
                                 .projections = {.query = q_proj,
                                                 .key = k_proj,
                                                 .value = v_proj,
                                                 .weight = &qkv_weight,
                                                 .bias = &qkv_bias},
                                 .method = method,
                                 .positions = &positions,
                                 .query_norm = q_norm,
                                 .key_norm = k_norm},
                                x, call, tap);
  CostScope scope("projections");
  return o_proj(context);
}

RotaryLayer::RotaryLayer(Init& init, const RotaryConfig& c, const AttentionMethod& attention,
                         const Positions& positions)
    : self_attn(child<RotaryAttention>("self_attn", init, c, attention, positions)),
      mlp(child<Branch>("mlp")),
      gate_proj(mlp.add<Linear>("gate_proj", init, c.hidden_size, c.intermediate_size, c.mlp_bias)),
      up_proj(mlp.add<Linear>("up_proj", init, c.hidden_size, c.intermediate_size, c.mlp_bias)),
      down_proj(mlp.add<Linear>("down_proj", init, c.intermediate_size, c.hidden_size, c.mlp_bias)),
      input_layernorm(
          child<Norm>("input_layernorm", init, NormKind::rms, c.hidden_size, c.rms_norm_eps)),
      post_attention_layernorm(child<Norm>("post_attention_layernorm", init, NormKind::rms,
                                           c.hidden_size, c.rms_norm_eps)),
      feed_forward{
          .up = up_proj, .down = down_proj, .activation = c.hidden_act, .gate = &gate_proj} {}

Tensor RotaryLayer::operator()(const Tensor& x, const ModelCall& call, Tap* tap) {
  const NormedSum h = post_attention_layernorm.of_sum(x, self_attn(input_layernorm(x), call, tap));
  return add(h.sum, feed_forward(h.normed));
}

RotaryDecoder::RotaryDecoder(Init& init, const RotaryConfig& config,
                             const AttentionMethod& attention)
    : Model(config.shape(), attention.name()),
      config_(config),
      positions_{.kind = Positions::Kind::rotary,
                 .frequencies = config.rope.frequencies(config.shape().head_size())} {
  init.linear_std = config.initializer_range;
  const int64_t C = config.hidden_size;
  Branch& model = child<Branch>("model");
  embed_tokens_ =
      &model.add<Embedding>("embed_tokens", init, config.vocab_size, C, config.initializer_range);
  Branch& layers = model.add<Branch>("layers");
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_.push_back(
        &layers.add<RotaryLayer>(std::to_string(i), init, config, attention, positions_));
  }
  norm_ = &model.add<Norm>("norm", init, NormKind::rms, C, config.rms_norm_eps);
  if (!config.tie_word_embeddings) {
    lm_head_ = &child<Linear>("lm_head", init, C, config.vocab_size, false);
  }
}

void RotaryDecoder::check_window(const ModelCall& call) const {
  const int64_t window = config_.sliding_window;
  if (!window || window >= config_.max_position_embeddings) return;
  auto within = [&](int64_t tokens) {
    check(tokens <= window, config_.kind->name, ": ", tokens, " tokens, but sliding_window is ",
          window, " and attention to a window is not supported");
  };
  if (call.ids.rank() == 2) within(call.ids.dim(1));
  if (!call.token_places.defined()) return;
  for (double place : call.token_places.to_vector()) within(int64_t(place) + 1);
}

Tensor RotaryDecoder::embed(const ModelCall& call) {
  check_window(call);
  check_ids(call, config_.kind->name);
  check(!call.type_ids.defined(), config_.kind->name, ": has no segments, so no type_ids");
  return (*embed_tokens_)(call.ids);
}

Tensor RotaryDecoder::layer(int64_t i, const Tensor& x, const ModelCall& call, Tap* tap) {
  return (*layers_.at(size_t(i)))(x, call, tap);
}

Tensor RotaryDecoder::finish(const Tensor& x) { return (*norm_)(x); }

Tensor RotaryDecoder::logits(const Tensor& hidden) const {
  CostScope scope("head");
  return lm_head_ ? (*lm_head_)(hidden) : linear(hidden, embed_tokens_->weight, Tensor());
}

Attention& RotaryDecoder::attention(int64_t i) const {
  return layers_.at(size_t(i))->self_attn.method;
}

std::string RotaryDecoder::attention_prefix(int64_t i) const {
  return join("model.layers.", i, ".self_attn.", attention_name(), ".");
}

}  // namespace brine::nn
