// Model configurations and their config.json.
#include "nn/models/model_config.h"

#include <nlohmann/json.hpp>

#include "data/io/json.h"
#include "nn/layers/low_rank.h"
#include "nn/models/hf_config.h"

namespace brine::nn {
namespace {

// Version of the section "brine" in config.json.
constexpr int64_t kConfigFormat = 1;

const char* torch_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32:
      return "float32";
    case Dtype::f16:
      return "float16";
    case Dtype::bf16:
      return "bfloat16";
    default:
      throw Error(join("config: weights cannot be stored as ", dtype));
  }
}

// Takes "lora_rank" out of the section "brine".
int64_t read_rank(data::Json& section, const std::string& source) {
  const auto found = section.find("lora_rank");
  if (found == section.end()) return 0;
  const bool valid = found->is_number_integer() && *found >= 1 && *found <= 1 << 16;
  check(valid, source, ": lora_rank = ", json_text(*found), " is not a rank");
  const int64_t rank = *found;
  section.erase("lora_rank");
  return rank;
}

// Students of sea have keys of an earlier version's blocks, which say nothing of columns.
void drop_old_block_keys(data::Json& section, const std::string& source) {
  const auto found = section.find("attention");
  if (found == section.end() || !found->is_object() || !found->contains("method") ||
      found->at("method") != "sea")
    return;
  for (const char* key : {"mask", "preset"}) {
    if (found->contains(key)) refuse_old_blocks(key, found->at(key), source);
  }
  for (const char* key :
       {"mask", "block", "parts", "tile", "sinks", "local", "survivors", "opinion"})
    found->erase(key);
}

bool is_token_key(const std::string& key) { return key.ends_with("_token_id"); }

// The ids of a value of such a key, one or a list, for which there is a row.
std::vector<int64_t> ids_of(const data::Json& value, int64_t rows) {
  std::vector<int64_t> ids;
  for (const data::Json& id : value.is_array() ? value : data::Json::array({value})) {
    if (id.is_number_integer() && id >= 0 && id < rows) ids.push_back(id.get<int64_t>());
  }
  return ids;
}

data::Json json_of_ids(const std::vector<int64_t>& ids) {
  if (ids.empty()) return nullptr;
  return ids.size() == 1 ? data::Json(ids.front()) : data::Json(ids);
}

// A key with ids that all lack rows counts as absent, so that the tokenizer's is written.
void read_token_ids(const data::Json& json, ModelConfig& config) {
  const int64_t rows = config.shape().vocab_size;
  for (const auto& [key, value] : json.items()) {
    if (!is_token_key(key)) continue;
    std::vector<int64_t> ids = ids_of(value, rows);
    if (value.is_null() || !ids.empty()) config.token_settings.ids[key] = std::move(ids);
  }
}

// An id without a row makes transformers refuse the model, so it is written as null.
void write_token_ids(const ModelConfig& config, const HfExtras& extras, data::Json& json) {
  const int64_t rows = config.shape().vocab_size;
  for (auto& [key, value] : json.items()) {
    if (is_token_key(key)) value = json_of_ids(ids_of(value, rows));
  }
  const auto& kept = config.token_settings.ids;
  for (const auto& [key, ids] : kept) json[key] = json_of_ids(ids);
  for (const auto& [key, id] :
       {std::pair("bos_token_id", extras.bos), std::pair("eos_token_id", extras.eos),
        std::pair("pad_token_id", extras.pad)}) {
    const auto found = kept.find(key);
    const bool known = found != kept.end() && !found->second.empty();
    if (!known && id && *id < rows) json[key] = *id;
  }
}

}  // namespace

ModelConfig::ModelConfig() {
  for (auto& [name, factory] : attention_methods()) methods[name] = factory();
}

void ModelConfig::describe(data::Schema& schema) {
  describe_model(schema);
  describe_attention(schema);
}

void ModelConfig::describe_model(data::Schema& schema) {
  std::vector<data::Variant> variants;
  for (auto& [name, family] : families.all()) {
    FamilyConfig* f = family.get();
    if (!f->is_whole()) continue;
    variants.push_back({name, [f](data::Schema& s) { f->describe(s); }});
  }
  schema.variants("model", "type", model_type, variants, "Family of the model", "model_type");
}

void ModelConfig::describe_attention(data::Schema& schema, const std::string& help) {
  std::vector<data::Variant> variants;
  for (auto& [name, method] : methods) {
    AttentionMethod* m = method.get();
    variants.push_back({name, [m](data::Schema& s) { m->describe(s); }});
    for (const auto& [preset, of] : attention_presets()) {
      if (of == name) variants.back().presets.push_back(preset);
    }
  }
  schema.variants("attention", "method", attention, variants, help);
}

void ModelConfig::copy_sizes(const ModelConfig& other) {
  model_type = other.model_type;
  families = other.families;
  token_settings = other.token_settings;
  lora_rank = other.lora_rank;
}

ModelConfig make_config(const std::string& model_type, const data::Json& sizes) {
  ModelConfig config;
  config.model_type = model_type;
  data::Schema keys = data::schema_of(config.family());
  keys.set_all(sizes);
  return config;
}

std::unique_ptr<Model> make_model(const ModelConfig& config, uint64_t seed, Dtype dtype) {
  return make_model(config, Init{.random = {.seed = seed, .stream = 1}, .dtype = dtype});
}

std::unique_ptr<Model> make_model(const ModelConfig& config, Init init) {
  std::unique_ptr<Model> model = config.family().make(init, config.method());
  init.base_values = true;
  if (config.lora_rank > 0) add_low_rank(*model, config.lora_rank, init);
  return model;
}

data::Json sizes_to_json(const ModelConfig& config) { return config.family().to_json(); }

data::Json to_hf_config(ModelConfig& config, const HfExtras& extras) {
  data::Json json = sizes_to_json(config);
  write_token_ids(config, extras, json);
  json["torch_dtype"] = torch_name(extras.dtype);
  data::Schema attention;
  config.describe_attention(attention);
  json["brine"] = attention.to_json();
  json["brine"]["format"] = kConfigFormat;
  if (config.lora_rank > 0) json["brine"]["lora_rank"] = config.lora_rank;
  return json;
}

void refuse_old_blocks(const std::string& key, const data::Json& value, const std::string& source) {
  const bool old = (key == "mask" || key == "preset") && value == "blocks";
  check(!old, source,
        ": this student has blocks of an earlier version (clusters); distil its "
        "teacher again: brine distill --attention blocks --teacher MODEL --data TEXT --out RUN");
}

ModelConfig from_hf_config(const data::Json& given, const std::string& source) {
  check(given.is_object(), source, ": not a JSON object");
  const data::Json json = usual_spelling(given);
  check(json.contains("model_type"), source, ": has no model_type");
  ModelConfig config;
  const data::Json& type = json["model_type"];
  std::string known;
  for (auto& [name, family] : config.families.all()) {
    if (family->is_whole()) known += (known.empty() ? "" : ", ") + json_text(data::Json(name));
    if (type == name) config.model_type = name;
  }
  check(type == config.model_type, source, ": model_type ", json_text(type),
        " is not supported, only ", known, "; brine_sea.attach() gives others blocks in PyTorch");
  config.family().read(json, source);
  want(json, source, "is_causal", config.shape().causal);
  read_token_ids(json, config);
  auto ours = json.find("brine");
  if (ours == json.end()) return config;
  check(ours->is_object() && ours->contains("format") && (*ours)["format"].is_number_integer(),
        source, ": the section \"brine\" has no format number");
  check((*ours)["format"] <= kConfigFormat, source, ": format ", json_text((*ours)["format"]),
        " was written by a newer version; this one reads up to ", kConfigFormat);
  data::Json attention = *ours;
  attention.erase("format");
  attention.erase("base_hash");  // of an adapter: used by the loader
  config.lora_rank = read_rank(attention, source);
  drop_old_block_keys(attention, source);
  data::Schema keys;
  config.describe_attention(keys);
  naming(source, [&] { keys.set_all(attention); });
  return config;
}

}  // namespace brine::nn
