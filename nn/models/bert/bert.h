// The BERT encoder (Devlin et al. 2019): post-LN, segments, pooler, heads for masked tokens and for
// classification. Parameters have the names of Hugging Face's BERT checkpoints.
#pragma once

#include <string>
#include <vector>

#include "nn/models/decoder/decoder.h"

namespace brine::nn {

// Field names are those of Hugging Face's config.json.
struct BertConfig {
  int64_t vocab_size = 30522;
  int64_t hidden_size = 768;
  int64_t num_hidden_layers = 12;
  int64_t num_attention_heads = 12;
  int64_t intermediate_size = 3072;
  int64_t max_position_embeddings = 512;
  int64_t type_vocab_size = 2;
  double hidden_dropout_prob = 0.1;
  double classifier_dropout = -1;  // before the classification head; -1 = hidden_dropout_prob
  double initializer_range = 0.02;
  double layer_norm_eps = 1e-12;
  Activation hidden_act = Activation::gelu;
  bool tie_word_embeddings = true;  // the output projection of masked tokens is the embedding

  // Which heads the model has.
  bool pooler = true;
  bool masked_lm = false;
  bool next_sentence = false;  // kept and written again, not trained
  int64_t labels = 0;          // of the classification head, which needs the pooler; 0 = none
  std::optional<Problem> problem = {};        // as in ClassHead
  std::vector<std::string> label_names = {};  // by class; empty: LABEL_0, LABEL_1, ...
  std::string finetuning_task = {};           // that the head was trained for; may be empty

  void describe(data::Schema& schema);
  void validate() const;
  ModelShape shape() const;

  // config.json; the heads follow from its "architectures".
  data::Json to_json() const;
  void read(const data::Json& json, const std::string& source);
  void set_positions(int64_t positions) { max_position_embeddings = positions; }
  // Only the classification head is kept.
  void set_class_head(const ClassHead& head);
  ClassHead class_head() const;
  ClassHeadTensors class_head_tensors() const { return {"classifier.", "bert.pooler."}; }
  // The heads are those whose tensors a file has, by Brine's names.
  void infer_from_tensors(const std::vector<std::string>& tensors);
  // Brine's name of a file's tensor: with "bert.", weight and bias instead of gamma and beta; ""
  // for an unused one (position_ids).
  std::string tensor_name(const std::string& name) const;
  std::map<std::string, std::string> ties() const;
};

class BertModel : public Model {
 public:
  BertModel(Init& init, const BertConfig& config, const AttentionMethod& method);

  Tensor embed(const ModelCall& call) override;
  Tensor layer(int64_t i, const Tensor& x, const ModelCall& call, Tap* tap) override;
  Tensor finish(const Tensor& x) override { return x; }
  Tensor logits(const Tensor& hidden) const override;  // masked tokens
  bool has_logits() const override { return masked_ != nullptr; }
  Tensor class_logits(const Tensor& hidden, RandomStream* random = nullptr) const override;
  int64_t labels() const override { return config_.labels; }
  // tanh(dense(hidden[:, 0])): hidden [B, T, C] of a packed call -> [B, C].
  Tensor pooled(const Tensor& hidden) const;
  Attention& attention(int64_t i) const override { return *layers_.at(size_t(i))->method; }
  std::string attention_prefix(int64_t i) const override;

  const BertConfig& config() const { return config_; }

 private:
  struct MaskedHead;

  BertConfig config_;
  Embedding* words_;
  Positions positions_;
  Embedding* types_;
  LayerNorm* norm_;
  Dropout* dropout_;
  std::vector<DecoderLayer*> layers_;
  Linear* pooler_ = nullptr;
  Linear* classifier_ = nullptr;
  Dropout* classifier_dropout_ = nullptr;
  MaskedHead* masked_ = nullptr;
};

}  // namespace brine::nn
