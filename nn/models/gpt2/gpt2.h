// The GPT-2 decoder (Radford et al. 2019): learned positions, pre-LN, one product for queries, keys
// and values. Parameters have the names and shapes of Hugging Face's checkpoints, whose linear
// weights are [in, out].
#pragma once

#include <string>
#include <vector>

#include "nn/layers/feed_forward.h"
#include "nn/models/family.h"

namespace brine::nn {

// Field names are those of Hugging Face's config.json.
struct Gpt2Config {
  int64_t vocab_size = 4096;
  int64_t n_positions = 512;
  int64_t n_embd = 256;
  int64_t n_layer = 4;
  int64_t n_head = 8;
  int64_t n_inner = 0;  // 0 = 4 n_embd
  Activation activation_function = Activation::gelu_tanh;
  double resid_pdrop = 0, embd_pdrop = 0;
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  bool tie_word_embeddings = true;

  void describe(data::Schema& schema);
  void validate() const;
  ModelShape shape() const;
  data::Json to_json() const;
  void read(const data::Json& json, const std::string& source);
  void set_positions(int64_t positions) { n_positions = positions; }
  // Files may lack the prefix "transformer."; old ones have causal masks as buffers.
  std::string tensor_name(const std::string& name) const;
  std::map<std::string, std::string> ties() const;
};

struct Gpt2Layer : Module {
  Gpt2Layer(Init& init, const Gpt2Config& config, const AttentionMethod& method);
  Tensor operator()(const Tensor& x, const ModelCall& call, Tap* tap);

  AttentionShape shape;
  LayerNorm& ln_1;
  Branch& attn;
  Linear& c_attn;  // [C, 3 C]: queries, keys, values
  Linear& c_proj;
  Attention& method;  // named after the method: "attn.sea.*"
  LayerNorm& ln_2;
  Branch& mlp;
  Linear& mlp_fc;
  Linear& mlp_proj;
  Dropout& dropout;
  FeedForward feed_forward;
};

class Gpt2Model : public Model {
 public:
  Gpt2Model(Init& init, const Gpt2Config& config, const AttentionMethod& method);

  Tensor embed(const ModelCall& call) override;
  Tensor layer(int64_t i, const Tensor& x, const ModelCall& call, Tap* tap) override;
  Tensor finish(const Tensor& x) override;
  Tensor logits(const Tensor& hidden) const override;
  Attention& attention(int64_t i) const override;
  std::string attention_prefix(int64_t i) const override;

 private:
  Embedding* wte_;
  Positions wpe_;
  Dropout* drop_;
  LayerNorm* ln_f_;
  Linear* lm_head_ = nullptr;  // null: tied
  std::vector<Gpt2Layer*> layers_;
};

}  // namespace brine::nn
