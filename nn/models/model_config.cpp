// Model configurations and their config.json.
#include "nn/models/model_config.h"
#include "data/io/json.h"

#include <nlohmann/json.hpp>

namespace brine::nn {
namespace {

// Version of the section "brine" in config.json.
constexpr int64_t kFormat = 1;

// What differs by family. A new one: its config struct in ModelConfig and a row in families().
struct Family {
  std::string name;
  void (*describe)(ModelConfig&, data::Schema&);
  ModelShape (*shape)(const ModelConfig&);
  std::unique_ptr<Model> (*make)(Init&, const ModelConfig&);
  data::Json (*write)(const ModelConfig&);
  void (*read)(ModelConfig&, const data::Json&, const std::string& source);
  void (*set_labels)(ModelConfig&, int64_t);
  void (*look_at)(ModelConfig&, const std::vector<std::string>&);
  std::string (*tensor_name)(const std::string&);
  std::map<std::string, std::string> (*ties)(const ModelConfig&);
};

template <class Made, auto member>
Family family(const char* name) {
  return {.name = name,
          .describe = [](ModelConfig& c, data::Schema& s) { (c.*member).describe(s); },
          .shape = [](const ModelConfig& c) { return (c.*member).shape(); },
          .make = [](Init& init, const ModelConfig& c) -> std::unique_ptr<Model> {
            return std::make_unique<Made>(init, c.*member, c.method());
          },
          .write = [](const ModelConfig& c) { return (c.*member).to_json(); },
          .read = [](ModelConfig& c, const data::Json& json,
                     const std::string& source) { (c.*member).read(json, source); },
          .set_labels = [](ModelConfig& c, int64_t n) { (c.*member).set_labels(n); },
          .look_at = [](ModelConfig& c,
                        const std::vector<std::string>& names) { (c.*member).look_at(names); },
          .tensor_name =
              std::remove_cvref_t<decltype(std::declval<ModelConfig>().*member)>::tensor_name,
          .ties = [](const ModelConfig& c) { return (c.*member).ties(); }};
}

const std::vector<Family>& families() {
  static const std::vector<Family> all = {family<BertModel, &ModelConfig::bert>("bert"),
                                          family<OptModel, &ModelConfig::opt>("opt")};
  return all;
}

const char* torch_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32:
      return "float32";
    case Dtype::f16:
      return "float16";
    case Dtype::bf16:
      return "bfloat16";
    default:
      throw Error(join("config: no model is stored as ", dtype));
  }
}

const Family& family_of(const ModelConfig& config) {
  for (const Family& f : families()) {
    if (f.name == config.model_type) return f;
  }
  throw Error(join("config: model_type '", config.model_type, "' is unknown"));
}

}  // namespace

ModelConfig::ModelConfig() {
  for (auto& [name, factory] : attention_methods()) methods[name] = factory();
}

void ModelConfig::describe(data::Schema& schema) {
  family_of(*this).describe(*this, schema);
  describe_attention(schema);
}

void ModelConfig::describe_attention(data::Schema& schema) {
  std::vector<data::Variant> variants;
  for (auto& [name, method] : methods) {
    AttentionMethod* m = method.get();
    variants.push_back({name, [m](data::Schema& s) { m->describe(s); }});
  }
  schema.variants("attention", "method", attention, variants, "Attention method");
}

ModelShape ModelConfig::shape() const { return family_of(*this).shape(*this); }

void ModelConfig::copy_sizes(const ModelConfig& other) {
  model_type = other.model_type;
  opt = other.opt;
  bert = other.bert;
}

void ModelConfig::set_labels(int64_t labels) { family_of(*this).set_labels(*this, labels); }

void ModelConfig::look_at(const std::vector<std::string>& tensors) {
  family_of(*this).look_at(*this, tensors);
}

std::string ModelConfig::tensor_name(const std::string& name) const {
  return family_of(*this).tensor_name(name);
}

std::map<std::string, std::string> ModelConfig::ties() const {
  return family_of(*this).ties(*this);
}

std::unique_ptr<Model> make_model(const ModelConfig& config, uint64_t seed, Dtype dtype) {
  return make_model(config, Init{.random = {.seed = seed, .stream = 1}, .dtype = dtype});
}

std::unique_ptr<Model> make_model(const ModelConfig& config, Init init) {
  return family_of(config).make(init, config);
}

data::Json sizes_to_json(const ModelConfig& config) { return family_of(config).write(config); }

data::Json to_hf_config(ModelConfig& config, const HfExtras& extras) {
  data::Json json = sizes_to_json(config);
  if (extras.bos) json["bos_token_id"] = *extras.bos;
  if (extras.eos) json["eos_token_id"] = *extras.eos;
  if (extras.pad) json["pad_token_id"] = *extras.pad;
  json["torch_dtype"] = torch_name(extras.dtype);
  data::Schema attention;
  config.describe_attention(attention);
  json["brine"] = attention.to_json();
  json["brine"]["format"] = kFormat;
  return json;
}

ModelConfig from_hf_config(const data::Json& json, const std::string& source) {
  check(json.is_object(), source, ": not a JSON object");
  check(json.contains("model_type"), source, ": has no model_type");
  ModelConfig config;
  std::string known;
  const Family* found = nullptr;
  for (const Family& f : families()) {
    known += (known.empty() ? "" : ", ") + json_text(data::Json(f.name));
    if (json["model_type"] == f.name) found = &f;
  }
  check(found, source, ": model_type ", json_text(json["model_type"]), " is not supported, only ",
        known);
  config.model_type = found->name;
  found->read(config, json, source);
  auto ours = json.find("brine");
  if (ours == json.end()) return config;
  check(ours->is_object() && ours->contains("format") && (*ours)["format"].is_number_integer(),
        source, ": the section \"brine\" has no format number");
  check((*ours)["format"] <= kFormat, source, ": format ", json_text((*ours)["format"]),
        " was written by a newer version; this one reads up to ", kFormat);
  data::Json attention = *ours;
  attention.erase("format");
  attention.erase("base_hash");  // of an adapter: the loader's business
  data::Schema keys;
  config.describe_attention(keys);
  try {
    keys.set_all(attention);
  } catch (const Error& e) {
    throw Error(source + ": " + e.what());
  }
  return config;
}

}  // namespace brine::nn
