// The GPT-2 decoder.
#include "nn/models/gpt2/gpt2.h"

#include <cmath>

#include "nn/models/register_family.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

Linear& conv1d(Branch& in, const char* name, Init& init, int64_t from, int64_t to) {
  return in.add<Linear>(name, init, from, to, true, WeightLayout::in_out);
}

// A map back to the residual stream, which adds 2 n_layer of these: its weights are smaller by the
// root of that.
Linear& residual_conv1d(Branch& in, const char* name, Init& init, int64_t from,
                        const Gpt2Config& c) {
  const double std = init.linear_std;
  init.linear_std = std / std::sqrt(2.0 * double(c.n_layer));
  Linear& made = conv1d(in, name, init, from, c.n_embd);
  init.linear_std = std;
  return made;
}

}  // namespace

Gpt2Layer::Gpt2Layer(Init& init, const Gpt2Config& c, const AttentionMethod& attention)
    : shape(c.shape().attention()),
      ln_1(child<LayerNorm>("ln_1", init, c.n_embd, c.layer_norm_epsilon)),
      attn(child<Branch>("attn")),
      c_attn(conv1d(attn, "c_attn", init, c.n_embd, 3 * c.n_embd)),
      c_proj(residual_conv1d(attn, "c_proj", init, c.n_embd, c)),
      method(adopt("attn." + attention.name(), attention.make(init, shape))),
      ln_2(child<LayerNorm>("ln_2", init, c.n_embd, c.layer_norm_epsilon)),
      mlp(child<Branch>("mlp")),
      mlp_fc(conv1d(mlp, "c_fc", init, c.n_embd, c.shape().inner_size)),
      mlp_proj(residual_conv1d(mlp, "c_proj", init, c.shape().inner_size, c)),
      dropout(child<Dropout>("dropout", c.resid_pdrop)),
      feed_forward{.up = mlp_fc, .down = mlp_proj, .activation = c.activation_function} {}

Tensor Gpt2Layer::operator()(const Tensor& x, const ModelCall& call, Tap* tap) {
  const Projections projections{.query = c_attn, .key = c_attn, .value = c_attn};
  const Tensor context =
      attend({.shape = shape, .projections = projections, .method = method}, ln_1(x), call, tap);
  auto project = [&] {
    CostScope scope("projections");
    return c_proj(context);
  };
  const NormedSum h = ln_2.of_sum(x, dropout(project(), call.random));
  return add(h.sum, dropout(feed_forward(h.normed), call.random));
}

Gpt2Model::Gpt2Model(Init& init, const Gpt2Config& c, const AttentionMethod& attention)
    : Model(c.shape(), attention.name()) {
  init.linear_std = c.initializer_range;
  Branch& transformer = child<Branch>("transformer");
  wte_ = &transformer.add<Embedding>("wte", init, c.vocab_size, c.n_embd, c.initializer_range);
  wpe_ = Positions::learned(
      transformer.add<Embedding>("wpe", init, c.n_positions, c.n_embd, c.initializer_range));
  drop_ = &transformer.add<Dropout>("drop", c.embd_pdrop);
  Branch& layers = transformer.add<Branch>("h");
  for (int64_t i = 0; i < c.n_layer; ++i) {
    layers_.push_back(&layers.add<Gpt2Layer>(std::to_string(i), init, c, attention));
  }
  ln_f_ = &transformer.add<LayerNorm>("ln_f", init, c.n_embd, c.layer_norm_epsilon);
  if (!c.tie_word_embeddings) {
    lm_head_ = &child<Linear>("lm_head", init, c.n_embd, c.vocab_size, false);
  }
}

Tensor Gpt2Model::embed(const ModelCall& call) {
  check_ids(call, "gpt2");
  check(!call.type_ids.defined(), "gpt2: has no segments, so no type_ids");
  return (*drop_)(wpe_.added((*wte_)(call.ids), call.token_places), call.random);
}

Tensor Gpt2Model::layer(int64_t i, const Tensor& x, const ModelCall& call, Tap* tap) {
  return (*layers_.at(size_t(i)))(x, call, tap);
}

Tensor Gpt2Model::finish(const Tensor& x) { return (*ln_f_)(x); }

Tensor Gpt2Model::logits(const Tensor& hidden) const {
  CostScope scope("head");
  return lm_head_ ? (*lm_head_)(hidden) : linear(hidden, wte_->weight, Tensor());
}

Attention& Gpt2Model::attention(int64_t i) const { return layers_.at(size_t(i))->method; }

std::string Gpt2Model::attention_prefix(int64_t i) const {
  return join("transformer.h.", i, ".attn.", attention_name(), ".");
}

const RegisterFamily<Gpt2Config, Gpt2Model> registration("gpt2");

}  // namespace brine::nn
