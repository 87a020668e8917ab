// Model configurations and their config.json.
#include "nn/model_config.h"

#include <nlohmann/json.hpp>

namespace brine::nn {
namespace {

// Version of the section "brine" in config.json.
constexpr int64_t kFormat = 1;

template <class T>
void want(const Json& json, const std::string& source, const char* key, const T& value) {
  auto it = json.find(key);
  if (it == json.end() || it->is_null()) return;
  check(*it == Json(value), source, ": ", key, " = ", it->dump(), " is not supported, only ",
        Json(value).dump());
}

}  // namespace

ModelConfig::ModelConfig() {
  for (auto& [name, factory] : attention_methods()) methods[name] = factory();
}

void ModelConfig::describe(Schema& schema) {
  opt.describe(schema);
  describe_attention(schema);
}

void ModelConfig::describe_attention(Schema& schema) {
  std::vector<Variant> variants;
  for (auto& [name, method] : methods) {
    AttentionMethod* m = method.get();
    variants.push_back({name, [m](Schema& s) { m->describe(s); }});
  }
  schema.variants("attention", "method", attention, variants, "Attention method");
}

std::unique_ptr<OptModel> make_model(const ModelConfig& config, uint64_t seed, Dtype dtype) {
  Init init{.random = {.seed = seed, .stream = 1}, .dtype = dtype};
  return std::make_unique<OptModel>(init, config.opt, config.method());
}

Json to_hf_config(ModelConfig& config, int64_t bos, int64_t eos, int64_t pad) {
  const OptConfig& o = config.opt;
  Json json = {{"architectures", {"OPTForCausalLM"}},
               {"model_type", "opt"},
               {"vocab_size", o.vocab_size},
               {"hidden_size", o.hidden_size},
               {"num_hidden_layers", o.num_hidden_layers},
               {"num_attention_heads", o.num_attention_heads},
               {"ffn_dim", o.ffn_dim},
               {"max_position_embeddings", o.max_position_embeddings},
               {"word_embed_proj_dim", o.hidden_size},
               {"dropout", o.dropout},
               {"attention_dropout", 0.0},
               {"activation_function", "relu"},
               {"do_layer_norm_before", true},
               {"layer_norm_elementwise_affine", true},
               {"_remove_final_layer_norm", false},
               {"enable_bias", true},
               {"layerdrop", 0.0},
               {"init_std", o.init_std},
               {"tie_word_embeddings", true},
               {"use_cache", true},
               {"bos_token_id", bos},
               {"eos_token_id", eos},
               {"pad_token_id", pad},
               {"torch_dtype", "float32"}};
  Schema attention;
  config.describe_attention(attention);
  json["brine"] = attention.to_json();
  json["brine"]["format"] = kFormat;
  return json;
}

ModelConfig from_hf_config(const Json& json, const std::string& source) {
  check(json.is_object(), source, ": not a JSON object");
  check(json.contains("model_type"), source, ": has no model_type");
  check(json["model_type"] == "opt", source, ": model_type ", json["model_type"].dump(),
        " is not supported, only \"opt\"");
  want(json, source, "do_layer_norm_before", true);
  want(json, source, "activation_function", "relu");
  want(json, source, "enable_bias", true);
  want(json, source, "layer_norm_elementwise_affine", true);
  want(json, source, "_remove_final_layer_norm", false);
  want(json, source, "tie_word_embeddings", true);
  ModelConfig config;
  Schema sizes;
  config.opt.describe(sizes);
  for (const Schema::Field& field : sizes.fields()) {
    if (auto it = json.find(field.key); it != json.end())
      sizes.set(field.key, *it, source + ": " + field.key);
  }
  for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                          "ffn_dim", "max_position_embeddings"}) {
    check(json.contains(key), source, ": has no ", key);
  }
  want(json, source, "word_embed_proj_dim", config.opt.hidden_size);
  config.opt.validate();
  auto ours = json.find("brine");
  if (ours == json.end()) return config;
  check(ours->is_object() && ours->contains("format") && (*ours)["format"].is_number_integer(),
        source, ": the section \"brine\" has no format number");
  check((*ours)["format"] <= kFormat, source, ": format ", (*ours)["format"].dump(),
        " was written by a newer version; this one reads up to ", kFormat);
  Json attention = *ours;
  attention.erase("format");
  Schema keys;
  config.describe_attention(keys);
  try {
    keys.set_all(attention);
  } catch (const Error& e) {
    throw Error(source + ": " + e.what());
  }
  return config;
}

}  // namespace brine::nn
