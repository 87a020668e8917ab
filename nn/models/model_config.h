// The configuration of a model: its family and sizes, and the attention method and its settings.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/config/schema.h"
#include "nn/attention/attention.h"
#include "nn/models/family.h"

namespace brine::nn {

// What the files of a model say about the tokens of its texts; kept as read, written again.
struct TokenSettings {
  // The keys of config.json that end in "_token_id", with the ids that the model has rows for: one,
  // a list, or for null none.
  std::map<std::string, std::vector<int64_t>> ids = {};
  std::string generation_config = {};  // text of generation_config.json; empty: there is none
};

struct ModelConfig {
  ModelConfig();

  std::string model_type = "opt";  // a registered family
  // The config of every registered family; that of the chosen one counts.
  FamilyConfigs families;
  TokenSettings token_settings;
  int64_t lora_rank = 0;            // of low-rank additions to the layers' linear maps; 0 = none
  std::string attention = "flash";  // a registered method
  // Settings of every registered method; those of the chosen one count.
  std::map<std::string, std::shared_ptr<AttentionMethod>> methods;

  // The sections "model" with its "type" and "attention" with its "method".
  void describe(data::Schema& schema);
  void describe_model(data::Schema& schema);
  void describe_attention(data::Schema& schema, const std::string& help = "Attention method");

  FamilyConfig& family() { return families.at(model_type); }
  const FamilyConfig& family() const { return families.at(model_type); }
  AttentionMethod& method() const { return *methods.at(attention); }
  // The family's struct; throws when the chosen family has another one.
  template <class Config>
  Config& as() {
    auto* typed = dynamic_cast<FamilyOf<Config>*>(&family());
    check(typed, "config: model_type '", model_type, "' has a config of another kind");
    return typed->config;
  }

  ModelShape shape() const { return family().shape(); }
  // Copies family, sizes, token settings and lora_rank of another model, not its attention.
  void copy_sizes(const ModelConfig& other);
};

// A family by name with sizes by the keys of its config, the others with their defaults:
// make_config("opt", {{"hidden_size", 64}}). Throws Error for an unknown name or key.
ModelConfig make_config(const std::string& model_type, const data::Json& sizes);

// `init` draws the initial values; by default from `seed`.
std::unique_ptr<Model> make_model(const ModelConfig& config, uint64_t seed,
                                  Dtype dtype = Dtype::f32);
std::unique_ptr<Model> make_model(const ModelConfig& config, Init init);

// The content of config.json except sizes and attention. Ids of the tokenizer are written where the
// token settings have none and the model has a row for them; absent ids are the family's.
struct HfExtras {
  std::optional<int64_t> bos = {}, eos = {}, pad = {};
  Dtype dtype = Dtype::f32;  // of the weights next to it
};
// config.json as for Hugging Face's family, with a section "brine" for additional settings.
data::Json to_hf_config(ModelConfig& config, const HfExtras& extras = {});
// Only the family's part of it: two models with the same base weights must agree in it.
data::Json sizes_to_json(const ModelConfig& config);
// Throws, with `source` first, for "mask" or "preset" of a student with blocks of an earlier
// version.
void refuse_old_blocks(const std::string& key, const data::Json& value, const std::string& source);
// Refuses unsupported settings by name. `source` starts the messages.
ModelConfig from_hf_config(const data::Json& json, const std::string& source);

}  // namespace brine::nn
