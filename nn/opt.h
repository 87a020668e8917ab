// The OPT decoder (Zhang et al. 2022): pre-LN, ReLU, learned positions with an offset of 2, tied
// head. Parameters bear the names of Hugging Face's OPT checkpoints.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nn/attention.h"
#include "nn/layers.h"

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

  void describe(Schema& schema);
  void validate() const;  // throws: heads must divide the hidden size, ...
};

// One forward pass.
struct ModelCall {
  Tensor ids;           // i32 [B, T]
  Tensor lengths = {};  // i64 [B]; undefined = all T
  AttentionDials dials = {};
  LayerObserver* observer = nullptr;
  RandomStream* random = nullptr;  // null: evaluation, no dropout
  bool recompute = false;          // keep only layer inputs, run layers again in backward
};

struct OptAttention : Module {
  OptAttention(Init& init, const OptConfig& config, const AttentionMethod& method);
  // x [B, T, C] the normed input -> context [B, T, C], before out_proj.
  Tensor context(const Tensor& x, const ModelCall& call, Tap* tap);

  int64_t heads;
  Linear& k_proj;
  Linear& v_proj;
  Linear& q_proj;
  Linear& out_proj;
  Packed& qkv_weight;  // [3C, C]
  Packed& qkv_bias;    // [3C]
  Attention& method;   // under its own name: "self_attn.sea.*"
};

struct OptLayer : Module {
  OptLayer(Init& init, const OptConfig& config, const AttentionMethod& method);
  Tensor operator()(const Tensor& x, const ModelCall& call, Tap* tap);

  OptAttention& self_attn;
  LayerNorm& self_attn_layer_norm;
  Mlp& mlp;  // without a name of its own: "fc1", "fc2"
  LayerNorm& final_layer_norm;
  Dropout& dropout;
};

class OptModel : public Module {
 public:
  OptModel(Init& init, const OptConfig& config, const AttentionMethod& method);

  // One layer at a time, for a teacher in lockstep: embed, then layer(0), layer(1), ...
  Tensor embed(const ModelCall& call);                                        // [B, T, C]
  Tensor layer(int64_t i, const Tensor& x, const ModelCall& call, Tap* tap);  // before final LN
  Tensor finish(const Tensor& x);                                             // final LN
  // All of it; calls call.observer after every layer.
  Tensor hidden(const ModelCall& call);       // [B, T, C], after the final LN
  Tensor logits(const Tensor& hidden) const;  // x [R..., C] -> [R..., V], tied head

  const OptConfig& config() const { return config_; }
  const std::string& attention_name() const { return attention_name_; }
  AttentionTraits attention_traits() const { return layers_.front()->self_attn.method.traits(); }
  std::vector<OptLayer*>& layers() { return layers_; }

 private:
  OptConfig config_;
  std::string attention_name_;
  Embedding* embed_tokens_;
  Embedding* embed_positions_;
  Dropout* dropout_;
  LayerNorm* final_layer_norm_;
  std::vector<OptLayer*> layers_;
};

// Targets of next-token prediction: ids [B, T] -> i32 [B, T], position t wants token t + 1; the
// last one of a sequence (t + 1 >= L) and everything before `loss_from` want nothing (-1).
Tensor next_tokens(const Tensor& ids, const Tensor& lengths, int64_t loss_from = 0);

}  // namespace brine::nn
