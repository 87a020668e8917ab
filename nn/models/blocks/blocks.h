// The attention blocks of a model without the model: what learns from a dump of a teacher of any
// family, and what brine_sea.attach() puts into that teacher in PyTorch.
#pragma once

#include <string>
#include <vector>

#include "nn/models/family.h"

namespace brine::nn {

// Sizes of the attention; field names are those of Hugging Face's config.json.
struct BlocksConfig {
  static constexpr const char* kName = "brine_blocks";
  static constexpr bool kWhole = false;

  int64_t num_hidden_layers = 1;
  int64_t num_attention_heads = 1;
  int64_t num_key_value_heads = 1;
  int64_t head_dim = 64;
  int64_t max_position_embeddings = 2048;
  bool causal = true;
  // The numbers of the layers in their model, ascending; empty: 0, 1, ...
  std::vector<int64_t> layers = {};
  std::string teacher_hash = "none";  // of the model whose attention they learned

  void describe(data::Schema& schema);
  void validate() const;
  ModelShape shape() const;
  data::Json to_json() const;
  void read(const data::Json& json, const std::string& source);
  void set_positions(int64_t positions) { max_position_embeddings = positions; }
};

// A model of which only attention() can be used: the rest throws. Tensors are "layers.N.NAME".
class BlocksModel : public Model {
 public:
  BlocksModel(Init& init, const BlocksConfig& config, const AttentionMethod& method);

  Tensor embed(const ModelCall& call) override;
  Tensor layer(int64_t i, const Tensor& x, const ModelCall& call, Tap* tap) override;
  Tensor finish(const Tensor& x) override;
  Tensor logits(const Tensor& hidden) const override;
  bool has_logits() const override { return false; }
  Attention& attention(int64_t i) const override { return *blocks_.at(size_t(i)); }
  std::string attention_prefix(int64_t i) const override { return join("layers.", i, "."); }

 private:
  std::vector<Attention*> blocks_;
};

}  // namespace brine::nn
