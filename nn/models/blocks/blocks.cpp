// The attention blocks of a model without the model.
#include "nn/models/blocks/blocks.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "nn/models/hf_config.h"
#include "nn/models/register_family.h"

namespace brine::nn {
namespace {

struct BlockList : Module {
  Attention* add(int64_t i, std::unique_ptr<Attention> block) {
    return &adopt(std::to_string(i), std::move(block));
  }
};

[[noreturn]] void refuse() { throw Error(join("blocks: ", kBlocksAlone)); }

}  // namespace

void BlocksConfig::describe(data::Schema& s) {
  s.field("num_hidden_layers", num_hidden_layers, "Number of blocks", {.min = 1});
  s.field("num_attention_heads", num_attention_heads, "Heads of queries", {.min = 1});
  s.field("num_key_value_heads", num_key_value_heads, "Heads of keys and values; divide the heads",
          {.min = 1});
  s.field("head_dim", head_dim, "Size of a head", {.min = 1});
  s.field("max_position_embeddings", max_position_embeddings, "Longest sequence", {.min = 1});
  s.field("causal", causal, "A query sees itself and the positions before it alone");
  s.field("teacher_hash", teacher_hash, "SHA-256 of the model's weights, or none");
}

void BlocksConfig::validate() const {
  check(num_attention_heads % num_key_value_heads == 0, "config: num_attention_heads ",
        num_attention_heads, " is not a multiple of num_key_value_heads ", num_key_value_heads);
  check(layers.empty() || int64_t(layers.size()) == num_hidden_layers, "config: layers has ",
        layers.size(), " numbers for ", num_hidden_layers, " blocks");
}

ModelShape BlocksConfig::shape() const {
  return {.vocab_size = 0,
          .hidden_size = num_attention_heads * head_dim,
          .layers = num_hidden_layers,
          .heads = num_attention_heads,
          .max_positions = max_position_embeddings,
          .causal = causal,
          .kv_heads = num_key_value_heads,
          .head_width = head_dim};
}

data::Json BlocksConfig::to_json() const {
  BlocksConfig copy = *this;  // a schema may change what it describes
  data::Json json = {{"model_type", kName}};
  json.update(data::schema_of(copy).to_json());
  if (!layers.empty()) json["layers"] = layers;
  return json;
}

void BlocksConfig::read(const data::Json& json, const std::string& source) {
  data::Schema schema = data::schema_of(*this);
  read_fields(schema, json, source,
              {"num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
               "max_position_embeddings", "causal"});
  layers.clear();
  if (json.contains("layers")) {
    const data::Json& numbers = json["layers"];
    auto is_number = [](const data::Json& n) { return n.is_number_unsigned(); };
    check(numbers.is_array() && std::all_of(numbers.begin(), numbers.end(), is_number), source,
          ": layers is not a list of numbers");
    layers = numbers.get<std::vector<int64_t>>();
  }
  naming(source, [this] { validate(); });
}

BlocksModel::BlocksModel(Init& init, const BlocksConfig& c, const AttentionMethod& method)
    : Model(c.shape(), method.name()) {
  BlockList& layers = child<BlockList>("layers");
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    blocks_.push_back(layers.add(i, method.make(init, c.shape().attention())));
  }
}

Tensor BlocksModel::embed(const ModelCall&) { refuse(); }
Tensor BlocksModel::layer(int64_t, const Tensor&, const ModelCall&, Tap*) { refuse(); }
Tensor BlocksModel::finish(const Tensor&) { refuse(); }
Tensor BlocksModel::logits(const Tensor&) const { refuse(); }

const RegisterFamily<BlocksConfig, BlocksModel> registration(BlocksConfig::kName);

}  // namespace brine::nn
