// The decoder of Llama (Touvron et al. 2023) and of the families that differ from it in a few
// settings: RMSNorm, rotary positions, grouped queries, a gated MLP. A family is a RotaryKind with
// a registration. Parameters have the names of Hugging Face's checkpoints.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "nn/layers/feed_forward.h"
#include "nn/models/decoder/rope.h"
#include "nn/models/family.h"

namespace brine::nn {

// The keys of config.json for attention to a window of recent tokens.
enum class WindowKeys : uint8_t {
  none,
  always,    // "sliding_window", where null means none
  switched,  // the same, if "use_sliding_window"
};

// What is fixed for all models of a family.
struct RotaryKind {
  const char* name;                 // model_type
  const char* architecture;         // the class in transformers
  bool has_attention_bias = false;  // config.json has "attention_bias": of q, k, v and o
  bool has_mlp_bias = false;        // config.json has "mlp_bias"
  bool biased_inputs = false;       // q, k and v always have biases, o has none
  bool normed_heads = false;        // RMSNorm over the features of each head of q and of k
  WindowKeys window = WindowKeys::none;
  std::array<const char*, 2> required = {};  // further keys without a default
};

// Field names are those of Hugging Face's config.json.
struct RotaryConfig {
  explicit RotaryConfig(const RotaryKind& kind) : kind(&kind) {}

  const RotaryKind* kind;
  int64_t vocab_size = 4096;
  int64_t hidden_size = 256;
  int64_t intermediate_size = 704;
  int64_t num_hidden_layers = 4;
  int64_t num_attention_heads = 8;
  int64_t num_key_value_heads = 0;  // 0 = num_attention_heads
  int64_t head_dim = 0;             // 0 = hidden_size / num_attention_heads
  int64_t max_position_embeddings = 512;
  double initializer_range = 0.02;
  double rms_norm_eps = 1e-6;
  Activation hidden_act = Activation::silu;
  bool attention_bias = false, mlp_bias = false;
  bool tie_word_embeddings = false;
  Rope rope;
  int64_t sliding_window = 0;  // 0: none

  void describe(data::Schema& schema);
  void validate() const;
  // Of max_positions only those that full attention and the window treat alike.
  ModelShape shape() const;
  data::Json to_json() const;
  void read(const data::Json& json, const std::string& source);
  void set_positions(int64_t positions);
  // Files of a model without its head lack the prefix "model.", old ones have frequencies.
  std::string tensor_name(const std::string& name) const;
  std::map<std::string, std::string> ties() const;

 private:
  void read_window(const data::Json& json, const std::string& source);
  void write_window(data::Json& json) const;
};

struct RotaryAttention : Module {
  RotaryAttention(Init& init, const RotaryConfig& config, const AttentionMethod& method,
                  const Positions& positions);
  // x [B, T, C] the layer's normed input -> [B, T, C].
  Tensor operator()(const Tensor& x, const ModelCall& call, Tap* tap);

  AttentionShape shape;
  Linear &q_proj, &k_proj, &v_proj, &o_proj;
  Packed &qkv_weight, &qkv_bias;
  Norm* q_norm = nullptr;  // [head size]
  Norm* k_norm = nullptr;
  const Positions& positions;
  Attention& method;  // named after the method: "self_attn.sea.*"
};

struct RotaryLayer : Module {
  RotaryLayer(Init& init, const RotaryConfig& config, const AttentionMethod& method,
              const Positions& positions);
  Tensor operator()(const Tensor& x, const ModelCall& call, Tap* tap);

  RotaryAttention& self_attn;
  Branch& mlp;
  Linear &gate_proj, &up_proj, &down_proj;
  Norm &input_layernorm, &post_attention_layernorm;
  FeedForward feed_forward;
};

class RotaryDecoder : public Model {
 public:
  RotaryDecoder(Init& init, const RotaryConfig& config, const AttentionMethod& method);

  Tensor embed(const ModelCall& call) override;
  Tensor layer(int64_t i, const Tensor& x, const ModelCall& call, Tap* tap) override;
  Tensor finish(const Tensor& x) override;
  Tensor logits(const Tensor& hidden) const override;
  Attention& attention(int64_t i) const override;
  std::string attention_prefix(int64_t i) const override;
  const Positions* rotary_positions() const override { return &positions_; }

 private:
  void check_window(const ModelCall& call) const;

  RotaryConfig config_;
  Positions positions_;
  Embedding* embed_tokens_;
  Norm* norm_;
  Linear* lm_head_ = nullptr;  // null: tied
  std::vector<RotaryLayer*> layers_;
};

}  // namespace brine::nn
