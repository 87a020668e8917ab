// BERT's sizes, its config.json and the tensor names of its files.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/io/json.h"
#include "nn/models/bert/bert.h"
#include "nn/models/hf_config.h"

namespace brine::nn {
namespace {

constexpr int64_t kMaxLabels = 1'000'000;

// The transformers class with these heads.
std::string architecture_of(const BertConfig& c) {
  if (c.labels) return "BertForSequenceClassification";
  if (c.masked_lm) return c.next_sentence ? "BertForPreTraining" : "BertForMaskedLM";
  return "BertModel";
}

// id2label by class; none if a class has no name.
std::vector<std::string> names_of_labels(const data::Json& json, int64_t labels) {
  std::vector<std::string> out;
  auto names = json.find("id2label");
  if (names == json.end() || !names->is_object()) return out;
  for (int64_t i = 0; i < labels; ++i) {
    auto name = names->find(std::to_string(i));
    if (name == names->end() || !name->is_string() || *name == join("LABEL_", i)) return {};
    out.push_back(name->get<std::string>());
  }
  return out;
}

// From id2label, num_labels or both, which must agree: releases of transformers differ in which of
// them counts.
int64_t label_count(const data::Json& json, const std::string& source) {
  auto names = json.find("id2label");
  const bool named = names != json.end() && names->is_object();
  auto count = json.find("num_labels");
  if (count == json.end() || count->is_null())
    return named ? int64_t(names->size()) : 2;  // as in transformers
  check(count->is_number_integer() && *count >= 1 && *count <= kMaxLabels, source,
        ": num_labels = ", count->dump(), " is not a number of labels");
  check(!named || int64_t(names->size()) == *count, source, ": num_labels = ", count->dump(),
        ", but id2label has ", names->size(), " labels; remove the wrong one");
  return count->get<int64_t>();
}

// Without a type it follows from the number of labels, as in transformers.
Problem problem_or_usual(const BertConfig& c) {
  return c.problem.value_or(c.labels == 1 ? Problem::regression : Problem::single_label);
}

std::optional<Problem> problem_of(const data::Json& json, const std::string& source) {
  auto type = json.find("problem_type");
  if (type == json.end() || type->is_null()) return std::nullopt;
  const auto problem = type->is_string() ? data::value_of(type->get<std::string>(), kProblems)
                                         : std::optional<Problem>();
  check(problem.has_value(), source, ": problem_type = ", json_text(*type),
        " is not supported, only \"regression\", \"single_label_classification\" and "
        "\"multi_label_classification\"");
  return problem;
}

}  // namespace

void BertConfig::describe(data::Schema& s) {
  s.field("vocab_size", vocab_size, "Number of tokens", {.min = 1});
  s.field("hidden_size", hidden_size, "Width of the residual stream", {.min = 1});
  s.field("num_hidden_layers", num_hidden_layers, "Number of layers", {.min = 1});
  s.field("num_attention_heads", num_attention_heads, "Heads; must divide hidden_size", {.min = 1});
  s.field("intermediate_size", intermediate_size, "Inner width of the MLP", {.min = 1});
  s.field("max_position_embeddings", max_position_embeddings, "Longest sequence", {.min = 1});
  s.field("type_vocab_size", type_vocab_size, "Number of segments", {.min = 1});
  s.field("hidden_dropout_prob", hidden_dropout_prob, "Dropout after attention, MLP and embedding",
          {.min = 0, .max = 0.9});
  s.field("classifier_dropout", classifier_dropout,
          "Dropout before the classification head; -1 = hidden_dropout_prob",
          {.min = -1, .max = 0.9});
  s.field("initializer_range", initializer_range, "Standard deviation of initial weights",
          {.min = 0});
  s.field("layer_norm_eps", layer_norm_eps, "Added to variances", {.above = 0});
  s.choice("hidden_act", hidden_act, kActivations, "Between the MLP's parts");
  s.field("tie_word_embeddings", tie_word_embeddings, "The masked-LM head is the embedding");
}

void BertConfig::validate() const {
  check(hidden_size % num_attention_heads == 0, "config: hidden_size ", hidden_size,
        " is not a multiple of num_attention_heads ", num_attention_heads);
  check(!labels || pooler, "config: a classification head needs the pooler");
}

ModelShape BertConfig::shape() const {
  return {.vocab_size = vocab_size,
          .hidden_size = hidden_size,
          .layers = num_hidden_layers,
          .heads = num_attention_heads,
          .inner_size = intermediate_size,
          .max_positions = max_position_embeddings,
          .causal = false};
}

data::Json BertConfig::to_json() const {
  data::Json json = {{"architectures", {architecture_of(*this)}},
                     {"model_type", "bert"},
                     {"vocab_size", vocab_size},
                     {"hidden_size", hidden_size},
                     {"num_hidden_layers", num_hidden_layers},
                     {"num_attention_heads", num_attention_heads},
                     {"intermediate_size", intermediate_size},
                     {"max_position_embeddings", max_position_embeddings},
                     {"type_vocab_size", type_vocab_size},
                     {"hidden_act", data::name_of(hidden_act, kActivations)},
                     {"hidden_dropout_prob", hidden_dropout_prob},
                     {"attention_probs_dropout_prob", 0.0},
                     {"classifier_dropout", nullptr},
                     {"initializer_range", initializer_range},
                     {"layer_norm_eps", layer_norm_eps},
                     {"position_embedding_type", "absolute"},
                     {"tie_word_embeddings", tie_word_embeddings},
                     {"use_cache", true},
                     {"pad_token_id", 0}};
  if (classifier_dropout >= 0) json["classifier_dropout"] = classifier_dropout;
  if (!labels) return json;
  json["problem_type"] = data::name_of(problem_or_usual(*this), kProblems);
  if (!finetuning_task.empty()) json["finetuning_task"] = finetuning_task;
  for (int64_t i = 0; i < labels; ++i) {
    bool named = int64_t(label_names.size()) == labels;
    std::string name = named ? label_names[size_t(i)] : join("LABEL_", i);
    json["id2label"][std::to_string(i)] = name;
    json["label2id"][name] = i;
  }
  return json;
}

void BertConfig::read(const data::Json& json, const std::string& source) {
  want_plain(json, source);
  want_learned_positions(json, source);
  want(json, source, "is_decoder", false);
  data::Schema sizes = data::schema_of(*this);
  read_fields(sizes, json, source,
              {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
               "intermediate_size", "max_position_embeddings"});
  std::string name = "BertModel";
  if (auto it = json.find("architectures"); it != json.end() && it->is_array() && !it->empty()) {
    check(it->front().is_string(), source, ": architectures holds ", json_text(it->front()));
    name = it->front().get<std::string>();
  }
  labels = name == "BertForSequenceClassification" ? label_count(json, source) : 0;
  problem = problem_of(json, source);
  label_names = names_of_labels(json, labels);
  auto task = json.find("finetuning_task");
  finetuning_task = task != json.end() && task->is_string() ? task->get<std::string>() : "";
  masked_lm = name == "BertForMaskedLM" || name == "BertForPreTraining";
  next_sentence = name == "BertForPreTraining";
  pooler = name != "BertForMaskedLM";
  naming(source, [this] { validate(); });
}

ClassHead BertConfig::class_head() const {
  return {.labels = labels,
          .problem = problem_or_usual(*this),
          .names = label_names,
          .task = finetuning_task};
}

void BertConfig::set_class_head(const ClassHead& head) {
  labels = head.labels;
  problem = head.problem;
  label_names = head.names;
  finetuning_task = head.task;
  masked_lm = next_sentence = false;
  pooler = pooler || labels > 0;
  validate();
}

void BertConfig::infer_from_tensors(const std::vector<std::string>& tensors) {
  auto has = [&](const std::string& name) {
    return std::find(tensors.begin(), tensors.end(), name) != tensors.end();
  };
  pooler = has("bert.pooler.dense.weight");
  masked_lm = has("cls.predictions.bias") || has("cls.predictions.transform.dense.weight");
  next_sentence = has("cls.seq_relationship.weight");
  if (!has("classifier.weight")) labels = 0;
}

std::string BertConfig::tensor_name(const std::string& name) const {
  if (name.ends_with("embeddings.position_ids")) return "";  // 0, 1, 2, ... in old files
  std::string out = name;
  for (const char* top : {"embeddings.", "encoder.", "pooler."}) {
    if (out.rfind(top, 0) == 0) out.insert(0, "bert.");
  }
  if (out.ends_with(".gamma")) return out.substr(0, out.size() - 5) + "weight";
  if (out.ends_with(".beta")) return out.substr(0, out.size() - 4) + "bias";
  return out;
}

std::map<std::string, std::string> BertConfig::ties() const {
  if (!masked_lm) return {};
  std::map<std::string, std::string> out = {
      {"cls.predictions.decoder.bias", "cls.predictions.bias"}};
  if (tie_word_embeddings) {
    out["cls.predictions.decoder.weight"] = "bert.embeddings.word_embeddings.weight";
  }
  return out;
}

}  // namespace brine::nn
