// What a model is made from: its family and sizes and the attention method with its own settings.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "data/config/schema.h"
#include "nn/attention/attention.h"
#include "nn/models/bert.h"
#include "nn/models/opt.h"

namespace brine::nn {

struct ModelConfig {
  ModelConfig();

  std::string model_type = "opt";  // "opt" or "bert": which of the next counts
  OptConfig opt;
  BertConfig bert;
  std::string attention = "flash";  // a registered method
  // Settings of every registered method; those of the chosen one count.
  std::map<std::string, std::shared_ptr<AttentionMethod>> methods;

  // Keys of the family's sizes, then the section "attention" with its "method".
  void describe(data::Schema& schema);
  void describe_attention(data::Schema& schema);
  AttentionMethod& method() const { return *methods.at(attention); }

  ModelShape shape() const;
  // Takes family and sizes of another model, not its attention.
  void copy_sizes(const ModelConfig& other);
  // Asks for a classification head; throws when the family has none.
  void set_labels(int64_t labels);

  // What a file's names mean to the family; see OptConfig.
  void look_at(const std::vector<std::string>& tensors);
  std::string tensor_name(const std::string& name) const;
  std::map<std::string, std::string> ties() const;
};

// `init` draws the initial values; by default from `seed`.
std::unique_ptr<Model> make_model(const ModelConfig& config, uint64_t seed,
                                  Dtype dtype = Dtype::f32);
std::unique_ptr<Model> make_model(const ModelConfig& config, Init init);

// What config.json says beside the model; absent ids are the family's own.
struct HfExtras {
  std::optional<int64_t> bos = {}, eos = {}, pad = {};
  Dtype dtype = Dtype::f32;  // of the weights beside it
};
// config.json as Hugging Face's family has it, with a section "brine" for what it has not.
data::Json to_hf_config(ModelConfig& config, const HfExtras& extras = {});
// The family's part of it alone: what two models must agree in to have the same base weights.
data::Json sizes_to_json(const ModelConfig& config);
// Refuses by name what is not supported. `source` starts the messages.
ModelConfig from_hf_config(const data::Json& json, const std::string& source);

}  // namespace brine::nn
