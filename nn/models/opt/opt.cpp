// The OPT decoder.
#include "nn/models/opt/opt.h"

#include "nn/models/register_family.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

// OPT's table has two rows more than positions: position t is row t + 2.
constexpr int64_t kPositionOffset = 2;

}  // namespace

OptAttention::OptAttention(Init& init, const OptConfig& c, const AttentionMethod& attention)
    : shape(c.shape().attention()),
      k_proj(child<Linear>("k_proj", init, c.hidden_size, c.hidden_size)),
      v_proj(child<Linear>("v_proj", init, c.hidden_size, c.hidden_size)),
      q_proj(child<Linear>("q_proj", init, c.hidden_size, c.hidden_size)),
      out_proj(child<Linear>("out_proj", init, c.hidden_size, c.hidden_size)),
      qkv_weight(pack({&q_proj.weight, &k_proj.weight, &v_proj.weight})),
      qkv_bias(pack({q_proj.bias, k_proj.bias, v_proj.bias})),
      method(adopt(attention.name(), attention.make(init, shape))) {}

Tensor OptAttention::context(const Tensor& x, const ModelCall& call, Tap* tap) {
  return attend({.shape = shape,
                 .projections = {.query = q_proj,
                                 .key = k_proj,
                                 .value = v_proj,
                                 .weight = &qkv_weight,
                                 .bias = &qkv_bias},
                 .method = method},
                x, call, tap);
}

Tensor OptAttention::project(const Tensor& context) const {
  CostScope scope("projections");
  return out_proj(context);
}

OptLayer::OptLayer(Init& init, const OptConfig& c, const AttentionMethod& attention)
    : self_attn(child<OptAttention>("self_attn", init, c, attention)),
      self_attn_layer_norm(child<LayerNorm>("self_attn_layer_norm", init, c.hidden_size)),
      fc1(child<Linear>("fc1", init, c.hidden_size, c.ffn_dim)),
      fc2(child<Linear>("fc2", init, c.ffn_dim, c.hidden_size)),
      final_layer_norm(child<LayerNorm>("final_layer_norm", init, c.hidden_size)),
      dropout(child<Dropout>("dropout", c.dropout)),
      mlp{.up = fc1, .down = fc2, .activation = c.activation_function},
      norm_first(c.do_layer_norm_before) {}

Tensor OptLayer::operator()(const Tensor& x, const ModelCall& call, Tap* tap) {
  Tensor in = norm_first ? self_attn_layer_norm(x) : x;
  Tensor context = self_attn.context(in, call, tap);
  Tensor attended = dropout(self_attn.project(context), call.random);
  if (norm_first) {
    const NormedSum h = final_layer_norm.of_sum(x, attended);
    return add(h.sum, dropout(mlp(h.normed), call.random));
  }
  const Tensor h = self_attn_layer_norm.of_sum(x, attended).normed;
  return final_layer_norm.of_sum(h, dropout(mlp(h), call.random)).normed;
}

OptModel::OptModel(Init& init, const OptConfig& config, const AttentionMethod& attention)
    : Model(config.shape(), attention.name()), config_(config) {
  init.linear_std = config.init_std;
  int64_t E = config.embedding_size(), C = config.hidden_size;
  Branch& decoder = child<Branch>("model").add<Branch>("decoder");
  embed_tokens_ =
      &decoder.add<Embedding>("embed_tokens", init, config.vocab_size, E, config.init_std);
  positions_ = Positions::learned(
      decoder.add<Embedding>("embed_positions", init,
                             config.max_position_embeddings + kPositionOffset, C, config.init_std),
      kPositionOffset);
  dropout_ = &decoder.add<Dropout>("dropout", config.dropout);
  if (config.has_final_norm()) {
    final_layer_norm_ = &decoder.add<LayerNorm>("final_layer_norm", init, C);
  }
  if (E != C) {
    project_in_ = &decoder.add<Linear>("project_in", init, E, C, false);
    project_out_ = &decoder.add<Linear>("project_out", init, C, E, false);
  }
  Branch& layers = decoder.add<Branch>("layers");
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_.push_back(&layers.add<OptLayer>(std::to_string(i), init, config, attention));
  }
  if (!config.tie_word_embeddings) {
    lm_head_ = &child<Linear>("lm_head", init, E, config.vocab_size, false);
  }
}

Tensor OptModel::embed(const ModelCall& call) {
  check_ids(call, "opt");
  check(!call.type_ids.defined(), "opt: has no segments, so no type_ids");
  Tensor tokens = (*embed_tokens_)(call.ids);
  if (project_in_) tokens = (*project_in_)(tokens);
  return (*dropout_)(positions_.added(tokens, call.token_places), call.random);
}

Tensor OptModel::layer(int64_t i, const Tensor& x, const ModelCall& call, Tap* tap) {
  return (*layers_.at(size_t(i)))(x, call, tap);
}

Tensor OptModel::finish(const Tensor& x) {
  Tensor y = final_layer_norm_ ? (*final_layer_norm_)(x) : x;
  return project_out_ ? (*project_out_)(y) : y;
}

Tensor OptModel::logits(const Tensor& hidden) const {
  CostScope scope("head");
  return lm_head_ ? (*lm_head_)(hidden) : linear(hidden, embed_tokens_->weight, Tensor());
}

Attention& OptModel::attention(int64_t i) const { return layers_.at(size_t(i))->self_attn.method; }

std::string OptModel::attention_prefix(int64_t i) const {
  return join("model.decoder.layers.", i, ".self_attn.", attention_name(), ".");
}

const RegisterFamily<OptConfig, OptModel> registration("opt");

}  // namespace brine::nn
