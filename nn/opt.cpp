// The OPT decoder.
#include "nn/opt.h"

namespace brine::nn {
namespace {

// OPT's table has two rows more than positions: position t is row t + 2.
constexpr int64_t kPositionOffset = 2;

Tensor position_ids(int64_t B, int64_t T) {
  Tensor ids = Tensor::empty({B, T}, Dtype::i32);
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t t = 0; t < T; ++t) ids.data<int32_t>()[b * T + t] = int32_t(t + kPositionOffset);
  }
  return ids;
}

AttentionShape shape_of(const OptConfig& c) {
  return {.heads = c.num_attention_heads,
          .head_size = c.hidden_size / c.num_attention_heads,
          .max_positions = c.max_position_embeddings,
          .causal = true};
}

// Containers that only carry the names "model" and "decoder" and "layers".
struct Branch : Module {
  template <class M, class... Args>
  M& add(std::string name, Args&&... args) {
    return child<M>(std::move(name), std::forward<Args>(args)...);
  }
};

}  // namespace

void OptConfig::describe(Schema& s) {
  s.field("vocab_size", vocab_size, "Number of tokens", {.min = 1});
  s.field("hidden_size", hidden_size, "Width of the residual stream", {.min = 1});
  s.field("num_hidden_layers", num_hidden_layers, "Number of layers", {.min = 1});
  s.field("num_attention_heads", num_attention_heads, "Heads; must divide hidden_size", {.min = 1});
  s.field("ffn_dim", ffn_dim, "Inner width of the MLP", {.min = 1});
  s.field("max_position_embeddings", max_position_embeddings, "Longest sequence", {.min = 1});
  s.field("dropout", dropout, "Dropout after attention, MLP and embedding", {.min = 0, .max = 0.9});
  s.field("init_std", init_std, "Standard deviation of initial weights", {.min = 0});
}

void OptConfig::validate() const {
  check(hidden_size % num_attention_heads == 0, "config: hidden_size ", hidden_size,
        " is not a multiple of num_attention_heads ", num_attention_heads);
}

OptAttention::OptAttention(Init& init, const OptConfig& c, const AttentionMethod& attention)
    : heads(c.num_attention_heads),
      k_proj(child<Linear>("k_proj", init, c.hidden_size, c.hidden_size)),
      v_proj(child<Linear>("v_proj", init, c.hidden_size, c.hidden_size)),
      q_proj(child<Linear>("q_proj", init, c.hidden_size, c.hidden_size)),
      out_proj(child<Linear>("out_proj", init, c.hidden_size, c.hidden_size)),
      qkv_weight(pack({&q_proj.weight, &k_proj.weight, &v_proj.weight})),
      qkv_bias(pack({q_proj.bias, k_proj.bias, v_proj.bias})),
      method(adopt(attention.name(), attention.make(init, shape_of(c)))) {}

Tensor OptAttention::context(const Tensor& x, const ModelCall& call, Tap* tap) {
  Tensor q, k, v;
  if (qkv_weight.value.defined()) {
    Tensor qkv = linear(x, qkv_weight.value, qkv_bias.value);  // [B, T, 3C]
    q = split_heads(qkv, heads, 0, 3);
    k = split_heads(qkv, heads, 1, 3);
    v = split_heads(qkv, heads, 2, 3);
  } else {
    q = split_heads(q_proj(x), heads);
    k = split_heads(k_proj(x), heads);
    v = split_heads(v_proj(x), heads);
  }
  if (tap) {
    tap->put("q", q);
    tap->put("k", k);
    tap->put("v", v);
  }
  Tensor c = method.forward({.q = q,
                             .k = k,
                             .v = v,
                             .hidden = x,
                             .see = {.causal = true, .lengths = call.lengths},
                             .dials = call.dials,
                             .tap = tap,
                             .random = call.random});
  if (tap) tap->put("context", c);
  return c;
}

OptLayer::OptLayer(Init& init, const OptConfig& c, const AttentionMethod& attention)
    : self_attn(child<OptAttention>("self_attn", init, c, attention)),
      self_attn_layer_norm(child<LayerNorm>("self_attn_layer_norm", init, c.hidden_size)),
      mlp(child<Mlp>("", init, c.hidden_size, c.ffn_dim, relu)),
      final_layer_norm(child<LayerNorm>("final_layer_norm", init, c.hidden_size)),
      dropout(child<Dropout>("dropout", c.dropout)) {}

Tensor OptLayer::operator()(const Tensor& x, const ModelCall& call, Tap* tap) {
  Tensor context = self_attn.context(self_attn_layer_norm(x), call, tap);
  Tensor h = add(x, dropout(self_attn.out_proj(context), call.random));
  return add(h, dropout(mlp(final_layer_norm(h)), call.random));
}

OptModel::OptModel(Init& init, const OptConfig& config, const AttentionMethod& attention)
    : config_(config), attention_name_(attention.name()) {
  config.validate();
  init.linear_std = config.init_std;
  Branch& decoder = child<Branch>("model").add<Branch>("decoder");
  embed_tokens_ = &decoder.add<Embedding>("embed_tokens", init, config.vocab_size,
                                          config.hidden_size, config.init_std);
  embed_positions_ = &decoder.add<Embedding>("embed_positions", init,
                                             config.max_position_embeddings + kPositionOffset,
                                             config.hidden_size, config.init_std);
  dropout_ = &decoder.add<Dropout>("dropout", config.dropout);
  final_layer_norm_ = &decoder.add<LayerNorm>("final_layer_norm", init, config.hidden_size);
  Branch& layers = decoder.add<Branch>("layers");
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layers_.push_back(&layers.add<OptLayer>(std::to_string(i), init, config, attention));
  }
}

Tensor OptModel::embed(const ModelCall& call) {
  check(call.ids.rank() == 2, "opt: ids must be [B, T], got ", call.ids.shape());
  int64_t B = call.ids.dim(0), T = call.ids.dim(1);
  check(T <= config_.max_position_embeddings, "opt: ", T, " tokens, but the model has ",
        config_.max_position_embeddings, " positions");
  Tensor x = add((*embed_tokens_)(call.ids), (*embed_positions_)(position_ids(B, T)));
  return (*dropout_)(x, call.random);
}

Tensor OptModel::layer(int64_t i, const Tensor& x, const ModelCall& call, Tap* tap) {
  return (*layers_.at(size_t(i)))(x, call, tap);
}

Tensor OptModel::finish(const Tensor& x) { return (*final_layer_norm_)(x); }

Tensor OptModel::hidden(const ModelCall& call) {
  Tensor x = embed(call);
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) {
    auto run = [this, i, call](const std::vector<Tensor>& in) {
      if (!call.observer) return layer(i, in[0], call, nullptr);
      Tap tap(attention_name_);
      Tensor y = layer(i, in[0], call, &tap);
      Tensor loss = call.observer->observe(i, tap, y);
      return loss.defined() ? attach_loss(y, loss) : y;
    };
    x = call.recompute ? checkpoint(run, {x}, call.random) : run({x});
  }
  return finish(x);
}

Tensor OptModel::logits(const Tensor& hidden) const {
  return linear(hidden, embed_tokens_->weight, Tensor());
}

Tensor next_tokens(const Tensor& ids, const Tensor& lengths, int64_t loss_from) {
  int64_t B = ids.dim(0), T = ids.dim(1);
  Tensor out = Tensor::empty({B, T}, Dtype::i32);
  for (int64_t b = 0; b < B; ++b) {
    int64_t L = lengths.defined() ? lengths.data<int64_t>()[b] : T;
    for (int64_t t = 0; t < T; ++t) {
      bool wanted = t + 1 < L && t + 1 >= loss_from;
      out.data<int32_t>()[b * T + t] = wanted ? ids.data<int32_t>()[b * T + t + 1] : -1;
    }
  }
  return out;
}

}  // namespace brine::nn
