// auto_map and sparse_attention_config of a student's config.json.
#include "apps/transformers/student_files.h"

#include <nlohmann/json.hpp>

#include "apps/terminal/embedded_files.h"
#include "data/io/json.h"

namespace brine {
namespace {

// The parts of a class of transformers, as "Llama" and "ForCausalLM".
struct ClassName {
  std::string family, head;
};

ClassName parts_of(const std::string& architecture) {
  for (const char* head : {"ForSequenceClassification", "ForPreTraining", "ForMaskedLM",
                           "ForCausalLM", "LMHeadModel", "Model"}) {
    if (!architecture.ends_with(head)) continue;
    return {architecture.substr(0, architecture.size() - std::string(head).size()), head};
  }
  throw Error(join("export: no class of a student for ", architecture));
}

std::string auto_class_of(const std::string& head) {
  if (head == "Model") return "AutoModel";
  return "AutoModel" + (head == "LMHeadModel" ? "ForCausalLM" : head);
}

void edit(data::Json& json) {
  const std::string architecture = json.at("architectures").at(0);
  const ClassName name = parts_of(architecture);
  json["auto_map"] = {
      {"AutoConfig", "configuration_brine_sea.Sea" + name.family + "Config"},
      {auto_class_of(name.head), "modeling_brine_sea.Sea" + architecture},
  };
  const data::Json& settings = json.at("brine").at("attention");
  const bool is_bert = name.family == "Bert";
  data::Json group{{"algorithm", settings.at("method")},
                   {"targets", {name.family + (is_bert ? "SelfAttention" : "Attention")}},
                   {"ignore", data::Json::array()}};
  for (const char* key : {"k", "columns", "block", "tile", "candidates"}) {
    if (settings.contains(key)) group[key] = settings.at(key);
  }
  json["sparse_attention_config"] = {
      {"config_groups", {{"group_0", group}}},
      {"producer", {{"name", "brine"}, {"version", BRINE_VERSION}}},
  };
}

}  // namespace

void add_transformers_files(const nn::ModelConfig& config, nn::ExportOptions& options) {
  check(config.attention == "sea" || config.attention == "blocks",
        "export: --format transformers is for students with SEA or blocks; '", config.attention,
        "' attention is not supported",
        nn::is_full_attention(config.attention)
            ? "; transformers loads what export writes without --format"
            : "");
  check(config.lora_rank == 0,
        "export: --format transformers has no low-rank additions (lora_rank ", config.lora_rank,
        "); give --merge");
  for (const auto& [name, text] : python_sources()) options.files.emplace(name, text);
  options.edit_config = edit;
}

}  // namespace brine
