// Sizes of small models, and a change of their tokenizers.
#pragma once

#include <nlohmann/json.hpp>

#include "nn/models/model_config.h"

namespace brine::test {

// An OPT of two layers with three heads of 8 features; `more` of its keys.
inline nn::ModelConfig small_opt(int64_t vocab_size, int64_t positions, double init_std,
                                 const data::Json& more = data::Json::object()) {
  data::Json sizes = {
      {"vocab_size", vocab_size}, {"hidden_size", 24}, {"num_hidden_layers", 2},
      {"num_attention_heads", 3}, {"ffn_dim", 40},     {"max_position_embeddings", positions},
      {"init_std", init_std}};
  sizes.update(more);
  return nn::make_config("opt", sizes);
}

// A BERT of the same sizes without dropout.
inline nn::ModelConfig small_bert(int64_t vocab_size, int64_t positions, double range) {
  return nn::make_config("bert", {{"vocab_size", vocab_size},
                                  {"hidden_size", 24},
                                  {"num_hidden_layers", 2},
                                  {"num_attention_heads", 3},
                                  {"intermediate_size", 40},
                                  {"max_position_embeddings", positions},
                                  {"hidden_dropout_prob", 0.0},
                                  {"initializer_range", range}});
}

// Lets a tokenizer.json put </s>, its token 2, in front of every text.
inline void put_end_in_front(nlohmann::json& tokenizer) {
  auto part = [](const char* kind, const char* id) {
    return nlohmann::json{{kind, {{"id", id}, {"type_id", 0}}}};
  };
  const nlohmann::json front = part("SpecialToken", "</s>"), text = part("Sequence", "A");
  tokenizer["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {front, text}},
      {"pair", {front, text, part("Sequence", "B")}},
      {"special_tokens", {{"</s>", {{"id", "</s>"}, {"ids", {2}}, {"tokens", {"</s>"}}}}}}};
}

}  // namespace brine::test
