// The BERT encoder.
#include "nn/models/bert/bert.h"

#include "nn/models/register_family.h"
#include "tensor/meter/cost_meter.h"

namespace brine::nn {
namespace {

// Positions of a call's tokens, counting padding as Hugging Face does: i32 [B, T].
Tensor positions_of(const ModelCall& call) {
  if (call.positions.defined()) return call.positions;
  return position_ids(call.ids.dim(0), call.ids.dim(1), {});
}

const DecoderKind kLayers{
    .name = "bert",
    .architecture = "BertModel",
    .names = {.positions = "position_embeddings",
              .attention = "attention.self",
              .query = "attention.self.query",
              .key = "attention.self.key",
              .value = "attention.self.value",
              .output = "attention.output.dense",
              .gate = nullptr,
              .up = "intermediate.dense",
              .down = "output.dense",
              .attention_norm = "attention.output.LayerNorm",
              .mlp_norm = "output.LayerNorm"},
    .norm = NormKind::layer,
    .causal = false,
    .order = {LayerPart::inputs, LayerPart::method, LayerPart::output, LayerPart::attention_norm,
              LayerPart::mlp, LayerPart::mlp_norm}};

DecoderConfig layers_of(const BertConfig& c) {
  return {.kind = &kLayers,
          .hidden_size = c.hidden_size,
          .inner_size = c.intermediate_size,
          .heads = c.num_attention_heads,
          .positions = c.max_position_embeddings,
          .dropout = c.hidden_dropout_prob,
          .eps = c.layer_norm_eps,
          .activation = c.hidden_act,
          .attention_bias = true,
          .mlp_bias = true,
          .norm_first = false};
}

}  // namespace

// cls.predictions: a transform of the hidden state, then the (tied) decoder with a bias.
struct BertModel::MaskedHead : Module {
  MaskedHead(Init& init, const BertConfig& c)
      : dense(child<Linear>("transform.dense", init, c.hidden_size, c.hidden_size)),
        norm(child<LayerNorm>("transform.LayerNorm", init, c.hidden_size, c.layer_norm_eps)),
        bias(parameter("bias", init.zeros({c.vocab_size}), false)),
        activation(c.hidden_act) {
    if (!c.tie_word_embeddings) {
      decoder = &child<Linear>("decoder", init, c.hidden_size, c.vocab_size, false);
    }
  }

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
  auto table = [&](const char* name, int64_t rows) {
    return &child<Embedding>(join("bert.embeddings.", name), init, rows, c.hidden_size, std);
  };
  words_ = table("word_embeddings", c.vocab_size);
  positions_.table = table("position_embeddings", c.max_position_embeddings);
  types_ = table("token_type_embeddings", c.type_vocab_size);
  norm_ = &child<LayerNorm>("bert.embeddings.LayerNorm", init, c.hidden_size, c.layer_norm_eps);
  dropout_ = &child<Dropout>("dropout", c.hidden_dropout_prob);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    layers_.push_back(&child<DecoderLayer>(join("bert.encoder.layer.", i), init, layers_of(c),
                                           method, positions_));
  }
  if (c.pooler) {
    pooler_ = &child<Linear>("bert.pooler.dense", init, c.hidden_size, c.hidden_size);
  }
  if (c.labels) {
    double p = c.classifier_dropout < 0 ? c.hidden_dropout_prob : c.classifier_dropout;
    classifier_dropout_ = &child<Dropout>("dropout", p);
    classifier_ = &child<Linear>("classifier", init, c.hidden_size, c.labels);
  }
  if (c.masked_lm) masked_ = &child<MaskedHead>("cls.predictions", init, c);
  if (c.next_sentence) {
    // It is in no loss: without decay an optimizer does not change it.
    child<Linear>("cls.seq_relationship", init, c.hidden_size, 2).weight.decay = false;
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

std::string BertModel::attention_prefix(int64_t i) const {
  return join("bert.encoder.layer.", i, ".attention.self.", attention_name(), ".");
}

const RegisterFamily<BertConfig, BertModel> registration("bert");

}  // namespace brine::nn
