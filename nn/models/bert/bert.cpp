// The BERT encoder.
#include "nn/models/bert/bert.h"

#include "nn/models/register_family.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

// Positions of a call's tokens, counting padding as Hugging Face does: i32 [B, T].
Tensor positions_of(const ModelCall& call) {
  if (call.places.defined()) return call.places;
  return position_ids(call.ids.dim(0), call.ids.dim(1), {});
}

}  // namespace

BertSelfAttention::BertSelfAttention(Init& init, const BertConfig& c,
                                     const AttentionMethod& attention)
    : query(child<Linear>("query", init, c.hidden_size, c.hidden_size)),
      key(child<Linear>("key", init, c.hidden_size, c.hidden_size)),
      value(child<Linear>("value", init, c.hidden_size, c.hidden_size)),
      qkv_weight(pack({&query.weight, &key.weight, &value.weight})),
      qkv_bias(pack({query.bias, key.bias, value.bias})),
      method(adopt(attention.name(), attention.make(init, c.shape().attention()))) {}

BertLayer::BertLayer(Init& init, const BertConfig& c, const AttentionMethod& method)
    : attention(child<Branch>("attention")),
      self(attention.add<BertSelfAttention>("self", init, c, method)),
      attention_output(attention.add<Branch>("output")),
      attention_dense(attention_output.add<Linear>("dense", init, c.hidden_size, c.hidden_size)),
      attention_norm(
          attention_output.add<LayerNorm>("LayerNorm", init, c.hidden_size, c.layer_norm_eps)),
      intermediate(child<Branch>("intermediate")
                       .add<Linear>("dense", init, c.hidden_size, c.intermediate_size)),
      output(child<Branch>("output")),
      output_dense(output.add<Linear>("dense", init, c.intermediate_size, c.hidden_size)),
      output_norm(output.add<LayerNorm>("LayerNorm", init, c.hidden_size, c.layer_norm_eps)),
      shape(c.shape().attention()),
      dropout(child<Dropout>("dropout", c.hidden_dropout_prob)),
      mlp{.up = intermediate, .down = output_dense, .activation = c.hidden_act} {}

Tensor BertLayer::operator()(const Tensor& x, const ModelCall& call, Tap* tap) {
  Tensor context = attend({.shape = shape,
                           .projections = {.query = self.query,
                                           .key = self.key,
                                           .value = self.value,
                                           .weight = &self.qkv_weight,
                                           .bias = &self.qkv_bias},
                           .method = self.method},
                          x, call, tap);
  Tensor h = attention_norm.of_sum(dropout(projected(context), call.random), x).normed;
  return output_norm.of_sum(dropout(mlp(h), call.random), h).normed;
}

Tensor BertLayer::projected(const Tensor& context) const {
  CostScope scope("projections");
  return attention_dense(context);
}

// cls.predictions: a transform of the hidden state, then the (tied) decoder with a bias.
struct BertModel::MaskedHead : Module {
  MaskedHead(Init& init, const BertConfig& c)
      : transform(child<Branch>("transform")),
        dense(transform.add<Linear>("dense", init, c.hidden_size, c.hidden_size)),
        norm(transform.add<LayerNorm>("LayerNorm", init, c.hidden_size, c.layer_norm_eps)),
        bias(parameter("bias", init.zeros({c.vocab_size}), false)),
        activation(c.hidden_act) {
    if (!c.tie_word_embeddings) {
      decoder = &child<Linear>("decoder", init, c.hidden_size, c.vocab_size, false);
    }
  }

  Branch& transform;
  Linear& dense;
  LayerNorm& norm;
  Parameter& bias;
  Linear* decoder = nullptr;  // null: tied
  Activation activation;
};

BertModel::BertModel(Init& init, const BertConfig& c, const AttentionMethod& method)
    : Model(c.shape(), method.name()), config_(c) {
  init.linear_std = c.initializer_range;
  double std = c.initializer_range;
  Branch& bert = child<Branch>("bert");
  Branch& embeddings = bert.add<Branch>("embeddings");
  words_ = &embeddings.add<Embedding>("word_embeddings", init, c.vocab_size, c.hidden_size, std);
  positions_.table = &embeddings.add<Embedding>("position_embeddings", init,
                                                c.max_position_embeddings, c.hidden_size, std);
  types_ = &embeddings.add<Embedding>("token_type_embeddings", init, c.type_vocab_size,
                                      c.hidden_size, std);
  norm_ = &embeddings.add<LayerNorm>("LayerNorm", init, c.hidden_size, c.layer_norm_eps);
  dropout_ = &embeddings.add<Dropout>("dropout", c.hidden_dropout_prob);
  Branch& layers = bert.add<Branch>("encoder").add<Branch>("layer");
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    layers_.push_back(&layers.add<BertLayer>(std::to_string(i), init, c, method));
  }
  if (c.pooler) {
    pooler_ = &bert.add<Branch>("pooler").add<Linear>("dense", init, c.hidden_size, c.hidden_size);
  }
  if (c.labels) {
    double p = c.classifier_dropout < 0 ? c.hidden_dropout_prob : c.classifier_dropout;
    classifier_dropout_ = &child<Dropout>("dropout", p);
    classifier_ = &child<Linear>("classifier", init, c.hidden_size, c.labels);
  }
  if (!c.masked_lm && !c.next_sentence) return;
  Branch& cls = child<Branch>("cls");
  if (c.masked_lm) masked_ = &cls.add<MaskedHead>("predictions", init, c);
  if (c.next_sentence) {
    // It is in no loss: without decay an optimizer does not change it.
    cls.add<Linear>("seq_relationship", init, c.hidden_size, 2).weight.decay = false;
  }
}

Tensor BertModel::embed(const ModelCall& call) {
  check_ids(call, "bert");
  Tensor types = call.type_ids;
  if (!types.defined()) types = Tensor::zeros(call.ids.shape(), Dtype::i32);
  check(types.shape() == call.ids.shape(), "bert: type_ids ", types.shape(),
        " do not have the shape of ids ", call.ids.shape());
  Tensor x = add((*words_)(call.ids), positions_.added_at((*types_)(types), positions_of(call)));
  return (*dropout_)((*norm_)(x), call.random);
}

Tensor BertModel::layer(int64_t i, const Tensor& x, const ModelCall& call, Tap* tap) {
  return (*layers_.at(size_t(i)))(x, call, tap);
}

Tensor BertModel::logits(const Tensor& hidden) const {
  check(masked_, "bert: has no masked-LM head");
  CostScope scope("head");
  Tensor x = masked_->norm(masked_->dense.activated(hidden, masked_->activation));
  return linear(x, masked_->decoder ? masked_->decoder->weight : words_->weight, masked_->bias);
}

Tensor BertModel::pooled(const Tensor& hidden) const {
  check(pooler_, "bert: has no pooler");
  check(hidden.rank() == 3, "bert: the pooler needs [B, T, C], got ", hidden.shape());
  Tensor first = reshape(slice(hidden, 1, 0, 1), {hidden.dim(0), hidden.dim(2)});
  return tanh((*pooler_)(first));
}

Tensor BertModel::class_logits(const Tensor& hidden, RandomStream* random) const {
  check(classifier_, "bert: has no classification head");
  return (*classifier_)((*classifier_dropout_)(pooled(hidden), random));
}

Attention& BertModel::attention(int64_t i) const { return layers_.at(size_t(i))->self.method; }

std::string BertModel::attention_prefix(int64_t i) const {
  return join("bert.encoder.layer.", i, ".attention.self.", attention_name(), ".");
}

const RegisterFamily<BertConfig, BertModel> registration("bert");

}  // namespace brine::nn
