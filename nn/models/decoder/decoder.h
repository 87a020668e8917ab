// The decoder of OPT (Zhang et al. 2022), GPT-2 (Radford et al. 2019), Llama (Touvron et al. 2023)
// and the families that differ from them in a few settings. A family is a DecoderKind, a row of
// families.cpp. Parameters have the names and shapes of Hugging Face's checkpoints.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "data/config/schema.h"
#include "nn/layers/layers.h"
#include "nn/models/family.h"
#include "tensor/tensor.h"

namespace brine::nn {

// The angles of rotary positions as config.json describes them: their base and their scaling.

enum class RopeType : uint8_t { unscaled, linear, llama3 };
inline constexpr data::Named<RopeType> kRopeTypes[] = {
    {RopeType::unscaled, "default"}, {RopeType::linear, "linear"}, {RopeType::llama3, "llama3"}};

// Field names are those of Hugging Face's config.json.
struct Rope {
  double rope_theta = 10000;
  RopeType rope_type = RopeType::unscaled;
  double factor = 1;  // linear: divides every frequency; llama3: the low ones
  // llama3: wavelengths above original_max_position_embeddings / low_freq_factor are scaled, those
  // below original_max_position_embeddings / high_freq_factor are not, in between it is a blend.
  double low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_max_position_embeddings = 0;

  // f64 [features / 2], for Positions.
  Tensor frequencies(int64_t features) const;

  // Reads "rope_scaling" or else "rope_parameters", and "rope_theta" where that has none; refuses
  // other types of scaling and their settings by name. `source` starts the messages.
  void read(const data::Json& json, const std::string& source);
  // Adds "rope_theta" and "rope_scaling", which all releases of transformers read.
  void write(data::Json& json) const;
};

// The keys of config.json whose names differ between families; null: the family has no such key.
struct DecoderKeys {
  const char* hidden = "hidden_size";
  const char* layers = "num_hidden_layers";
  const char* heads = "num_attention_heads";
  const char* inner = "intermediate_size";
  const char* positions = "max_position_embeddings";
  const char* initial = "initializer_range";
  const char* eps = "rms_norm_eps";
  const char* dropout = nullptr;            // after attention and MLP
  const char* embedding_dropout = nullptr;  // null: `dropout` counts
};

// The names of modules, with dots between parents and children.
struct DecoderNames {
  // `trunk`, a dot and the next four are those of the model.
  const char* trunk = "model";
  const char* tokens = "embed_tokens";
  const char* positions = nullptr;  // a learned table; null: rotary positions
  const char* layers = "layers";
  const char* norm = "norm";
  // Those of a layer. The attention method is in `attention`, under its own name.
  const char* attention = "self_attn";
  const char* query = "self_attn.q_proj";
  const char* key = "self_attn.k_proj";  // null: `query` makes keys and values, too
  const char* value = "self_attn.v_proj";
  const char* output = "self_attn.o_proj";
  const char* gate = "mlp.gate_proj";  // null: a plain MLP
  const char* up = "mlp.up_proj";
  const char* down = "mlp.down_proj";
  const char* attention_norm = "input_layernorm";
  const char* mlp_norm = "post_attention_layernorm";
};

// The keys of config.json for attention to a window of recent tokens.
enum class WindowKeys : uint8_t {
  none,
  always,    // "sliding_window", where null means none
  switched,  // the same, if "use_sliding_window"
};

// Those of a layer: `inputs` are queries, keys and values, `method` is that of attention with the
// norms of heads.
enum class LayerPart : uint8_t { attention_norm, inputs, output, method, mlp_norm, mlp };

// What is fixed for all models of a family.
struct DecoderKind {
  const char* name;          // model_type
  const char* architecture;  // the class in transformers
  DecoderKeys keys = {};
  DecoderNames names = {};
  NormKind norm = NormKind::rms;
  WeightLayout layout = WeightLayout::out_in;  // of the linear maps in layers
  int64_t position_offset = 0;                 // position t is row t + offset of the learned table
  bool has_attention_bias = false;             // config.json has "attention_bias": of q, k, v and o
  bool has_mlp_bias = false;                   // config.json has "mlp_bias"
  bool biased_inputs = false;                  // q, k and v always have biases
  bool normed_heads = false;  // RMSNorm over the features of each head of q and of k
  // Output projections start with std / sqrt(number of them).
  bool smaller_outputs = false;
  // config.json has "word_embed_proj_dim", "do_layer_norm_before", "_remove_final_layer_norm".
  bool has_post_norm = false;
  int64_t least_inner = 1;  // 0: 0 and null stand for 4 times the hidden size
  WindowKeys window = WindowKeys::none;
  bool causal = true;
  // The order of parameters, in which they are drawn, stored and summed.
  std::array<LayerPart, 6> order = {LayerPart::inputs,         LayerPart::output,
                                    LayerPart::method,         LayerPart::mlp,
                                    LayerPart::attention_norm, LayerPart::mlp_norm};
  bool queries_last = false;        // k, v, q
  bool norm_before_layers = false;  // that after the last layer
  // What the MLP's `activation` may be: calls choice().
  void (*describe_activation)(data::Schema& schema, Activation& activation) = nullptr;
  // Further keys that a file must have: their defaults are other ones in transformers.
  std::vector<std::string> required = {};
  // As JSON: settings of which one value is supported, and what is written besides the config.
  const char* supported = "{}";
  const char* written = "{}";
  // Starts of names in files of a model without its head, which lack the first word of `trunk`.
  std::vector<std::string> bare = {"embed_tokens.", "layers.", "norm."};
  // Ends of names of buffers in old files.
  std::vector<std::string> unused = {".rotary_emb.inv_freq"};
};

struct DecoderConfig {
  const DecoderKind* kind;
  int64_t vocab_size = 4096;
  int64_t hidden_size = 256;
  int64_t inner_size = 0;  // of the MLP; 0 = 4 hidden_size
  int64_t layers = 4;
  int64_t heads = 8;
  int64_t kv_heads = 0;        // 0 = heads
  int64_t head_width = 0;      // 0 = hidden_size / heads
  int64_t embedding_size = 0;  // of tokens, projected to and from hidden_size; 0 = hidden_size
  int64_t positions = 512;
  double dropout = 0, embedding_dropout = 0;
  double initial = 0.02;  // standard deviation of initial weights
  double eps = 1e-5;      // of norms
  Activation activation = Activation::silu;
  bool attention_bias = false, mlp_bias = false;
  bool tied = false;       // the head is the embedding
  bool norm_first = true;  // before attention and MLP; false: after
  bool remove_final_norm = false;
  Rope rope = {};
  int64_t window = 0;  // 0: none

  bool rotary() const { return !kind->names.positions; }
  void describe(data::Schema& schema);
  void validate() const;
  // Of positions only those that full attention and the window treat alike.
  ModelShape shape() const;
  data::Json to_json() const;
  void read(const data::Json& json, const std::string& source);
  void set_positions(int64_t count);
  std::string tensor_name(const std::string& name) const;
  std::map<std::string, std::string> ties() const;

 private:
  data::Schema file_schema();  // with the keys of config.json alone
  void read_window(const data::Json& json, const std::string& source);
};

// A layer of a decoder, or of an encoder (nn/models/bert).
struct DecoderLayer : Module {
  DecoderLayer(Init& init, const DecoderConfig& config, const AttentionMethod& method,
               const Positions& positions);
  Tensor operator()(const Tensor& x, const ModelCall& call, Tap* tap);

  AttentionShape shape;
  const Positions& positions;
  bool norm_first;
  Activation activation;
  Dropout dropout;
  Norm *attention_norm = nullptr, *mlp_norm = nullptr;
  Linear *query = nullptr, *key = nullptr, *value = nullptr, *output = nullptr;
  Packed *weight = nullptr, *bias = nullptr;        // of q, k and v; null: one Linear makes all
  Norm *query_norm = nullptr, *key_norm = nullptr;  // [head size]; null: none
  Attention* method = nullptr;                      // named after the method: "self_attn.sea.*"
  Linear *gate = nullptr, *up = nullptr, *down = nullptr;

 private:
  void make_inputs(Init& init, const DecoderConfig& config);
  Tensor attended(const Tensor& x, const ModelCall& call, Tap* tap);
};

class Decoder : public Model {
 public:
  Decoder(Init& init, const DecoderConfig& config, const AttentionMethod& method);

  Tensor embed(const ModelCall& call) override;
  Tensor layer(int64_t i, const Tensor& x, const ModelCall& call, Tap* tap) override;
  Tensor finish(const Tensor& x) override;             // final norm, projection to the embedding
  Tensor logits(const Tensor& hidden) const override;  // [R..., E] -> [R..., V]
  Attention& attention(int64_t i) const override { return *layers_.at(size_t(i))->method; }
  std::string attention_prefix(int64_t i) const override;
  const Positions* rotary_positions() const override {
    return config_.rotary() ? &positions_ : nullptr;
  }

 private:
  void check_window(const ModelCall& call) const;

  DecoderConfig config_;
  Positions positions_;
  Dropout dropout_;
  Embedding* tokens_;
  Linear *project_in_ = nullptr, *project_out_ = nullptr;  // embedding -> hidden -> embedding
  Norm* norm_ = nullptr;
  Linear* head_ = nullptr;  // null: tied
  std::vector<DecoderLayer*> layers_;
};

}  // namespace brine::nn
