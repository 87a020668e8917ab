// What a model is made from: the decoder's sizes and the attention method with its own settings.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "nn/attention.h"
#include "nn/opt.h"
#include "nn/schema.h"

namespace brine::nn {

struct ModelConfig {
  ModelConfig();

  OptConfig opt;
  std::string attention = "dense";  // a registered method
  // Settings of every registered method; those of the chosen one count.
  std::map<std::string, std::shared_ptr<AttentionMethod>> methods;

  // Keys of the decoder, then the section "attention" with its "method".
  void describe(Schema& schema);
  void describe_attention(Schema& schema);
  AttentionMethod& method() const { return *methods.at(attention); }
};

std::unique_ptr<OptModel> make_model(const ModelConfig& config, uint64_t seed,
                                     Dtype dtype = Dtype::f32);

// config.json as Hugging Face's OPT has it, with a section "brine" for what OPT has not.
Json to_hf_config(ModelConfig& config, int64_t bos, int64_t eos, int64_t pad);
// Refuses by name what is not supported. `source` starts the messages.
ModelConfig from_hf_config(const Json& json, const std::string& source);

}  // namespace brine::nn
