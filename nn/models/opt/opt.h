// The OPT decoder (Zhang et al. 2022): learned positions with an offset of 2; pre-LN, or post-LN
// with a narrower embedding (350M). Parameters have the names of Hugging Face's OPT checkpoints.
#pragma once

#include <string>
#include <vector>

#include "nn/layers/feed_forward.h"
#include "nn/models/family.h"

namespace brine::nn {

// Field names are those of Hugging Face's config.json.
struct OptConfig {
  int64_t vocab_size = 4096;
  int64_t hidden_size = 256;
  int64_t num_hidden_layers = 4;
  int64_t num_attention_heads = 8;
  int64_t ffn_dim = 1024;
  int64_t max_position_embeddings = 512;
  double dropout = 0;
  double init_std = 0.02;
  int64_t word_embed_proj_dim = 0;  // width of embedding and head; 0 = hidden_size
  bool do_layer_norm_before = true;
  bool remove_final_layer_norm = false;
  bool tie_word_embeddings = true;  // false: a separate head
  Activation activation_function = Activation::relu;

  void describe(data::Schema& schema);
  void validate() const;  // throws: heads must divide the hidden size, ...
  ModelShape shape() const;
  int64_t embedding_size() const { return word_embed_proj_dim ? word_embed_proj_dim : hidden_size; }
  bool has_final_norm() const { return do_layer_norm_before && !remove_final_layer_norm; }

  // config.json; read() refuses unsupported settings by name, `source` starts the messages.
  data::Json to_json() const;
  void read(const data::Json& json, const std::string& source);
  void set_positions(int64_t positions) { max_position_embeddings = positions; }
  // Brine's name of a file's tensor, which may lack the prefix "model."; "" for an unused one.
  std::string tensor_name(const std::string& name) const;
  // Names under which a file may repeat a tied tensor, each with the model's name of that tensor.
  std::map<std::string, std::string> ties() const;
};

struct OptAttention : Module {
  OptAttention(Init& init, const OptConfig& config, const AttentionMethod& method);
  // x [B, T, C] the layer's (normed) input -> the attention output [B, T, C], before out_proj.
  Tensor context(const Tensor& x, const ModelCall& call, Tap* tap);
  Tensor project(const Tensor& context) const;

  AttentionShape shape;
  Linear& k_proj;
  Linear& v_proj;
  Linear& q_proj;
  Linear& out_proj;
  Packed& qkv_weight;  // [3C, C]
  Packed& qkv_bias;    // [3C]
  Attention& method;   // named after the method: "self_attn.sea.*"
};

struct OptLayer : Module {
  OptLayer(Init& init, const OptConfig& config, const AttentionMethod& method);
  Tensor operator()(const Tensor& x, const ModelCall& call, Tap* tap);

  OptAttention& self_attn;
  LayerNorm& self_attn_layer_norm;
  Linear& fc1;
  Linear& fc2;
  LayerNorm& final_layer_norm;
  Dropout& dropout;
  FeedForward mlp;
  bool norm_first;
};

class OptModel : public Model {
 public:
  OptModel(Init& init, const OptConfig& config, const AttentionMethod& method);

  Tensor embed(const ModelCall& call) override;
  Tensor layer(int64_t i, const Tensor& x, const ModelCall& call, Tap* tap) override;
  Tensor finish(const Tensor& x) override;             // final norm, projection to the embedding
  Tensor logits(const Tensor& hidden) const override;  // [R..., E] -> [R..., V]
  Attention& attention(int64_t i) const override;
  std::string attention_prefix(int64_t i) const override;

  const OptConfig& config() const { return config_; }

 private:
  OptConfig config_;
  Embedding* embed_tokens_;
  Positions positions_;
  Dropout* dropout_;
  Linear* project_in_ = nullptr;  // E -> C
  Linear* project_out_ = nullptr;
  LayerNorm* final_layer_norm_ = nullptr;
  Linear* lm_head_ = nullptr;  // null: tied
  std::vector<OptLayer*> layers_;
};

}  // namespace brine::nn
