// Costs of whole models on the meta device: golden numbers, any length, agreement with real passes.
#include "nn/models/model_costs.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "data/io/file_io.h"
#include "tensor/device/allocator.h"
#include "tests/gradcheck.h"
#include "tests/nn/costs.h"
#include "tests/paths.h"

namespace brine::test {
namespace {

using data::Json;

// config.json of the models below.
Json sizes_of(const std::string& name) {
  if (name == "bert" || name == "classifier") {
    const bool labels = name == "classifier";
    return {{"model_type", "bert"},
            {"architectures", {labels ? "BertForSequenceClassification" : "BertForMaskedLM"}},
            {"vocab_size", 30522},
            {"hidden_size", 768},
            {"num_hidden_layers", 12},
            {"num_attention_heads", 12},
            {"intermediate_size", 3072},
            {"max_position_embeddings", labels ? 512 : 131072}};
  }
  Json opt = {{"model_type", "opt"},     {"vocab_size", 50272},
              {"hidden_size", 768},      {"word_embed_proj_dim", 768},
              {"num_hidden_layers", 12}, {"num_attention_heads", 12},
              {"ffn_dim", 3072},         {"max_position_embeddings", 131072}};
  if (name == "opt350") {
    opt.update({{"hidden_size", 1024},
                {"word_embed_proj_dim", 512},
                {"num_hidden_layers", 24},
                {"num_attention_heads", 16},
                {"ffn_dim", 4096},
                {"do_layer_norm_before", false}});
  } else if (name == "opt1300") {
    opt.update({{"hidden_size", 2048},
                {"word_embed_proj_dim", 2048},
                {"num_hidden_layers", 24},
                {"num_attention_heads", 32},
                {"ffn_dim", 8192}});
  }
  return opt;
}

nn::ModelConfig config_of(const std::string& model, const Json& attention) {
  Json json = sizes_of(model);
  json["brine"] = {{"format", 1}, {"attention", attention}};
  return nn::from_hf_config(json, model);
}

nn::ModelConfig small(const std::string& family, const std::string& attention) {
  Json json = sizes_of(family);
  json.update({{"vocab_size", 50},
               {"hidden_size", 48},
               {"num_hidden_layers", 2},
               {"num_attention_heads", 3},
               {"max_position_embeddings", 200}});
  if (json.contains("word_embed_proj_dim")) json["word_embed_proj_dim"] = 48;
  json[json.contains("ffn_dim") ? "ffn_dim" : "intermediate_size"] = 64;
  json["brine"] = {{"format", 1}, {"attention", {{"method", attention}}}};
  return nn::from_hf_config(json, family);
}

}  // namespace

// The file was computed from formulas, op by op, before costs were counted; what sea composes of
// primitives, as these count. An activation after a linear map is part of its product: it reads and
// writes nothing itself.
TEST_CASE("costs: golden multiply-adds and bytes of models on the meta device") {
  const Json cases = Json::parse(data::read_file(source_dir() + "/tests/golden/costs.json"));
  CHECK(cases.size() == 8);
  for (const Json& golden : cases) {
    CAPTURE(golden.at("model"));
    CAPTURE(golden.at("attention"));
    const nn::MetaModel meta(config_of(golden.at("model"), golden.at("attention")));
    const nn::RuntimeOptions options{.k = golden.value("k", int64_t(0)),
                                     .query_skip = golden.value("query_skip", int64_t(1))};
    const auto costs = nn::forward_costs(*meta.model, golden.at("tokens"), options);
    CHECK(costs.size() == golden.at("costs").size());
    for (const auto& [component, wanted] : golden.at("costs").items()) {
      CAPTURE(component);
      REQUIRE(costs.contains(component));
      CHECK(costs.at(component).macs == wanted.at(0));
      CHECK(costs.at(component).bytes == wanted.at(1));
    }
  }
}

TEST_CASE("costs: a model of 1.3 billion parameters and 131,072 tokens takes no memory") {
  for (const char* attention : {"dense", "sea"}) {
    CAPTURE(attention);
    const auto start = std::chrono::steady_clock::now();
    const int64_t before = allocator_stats().live;
    reset_peak();
    const nn::MetaModel meta(config_of("opt1300", {{"method", attention}}));
    CHECK(nn::parameter_count(*meta.model) > 1'300'000'000);
    CHECK_FALSE(nn::forward_costs(*meta.model, 131072).empty());
    CHECK(allocator_stats().peak_live - before < 8 << 20);  // token and position ids
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
  }
}

TEST_CASE("costs: the meta device counts the same as a real pass of a model, for every family") {
  for (const std::string family : {"opt", "opt350", "bert", "classifier"}) {
    for (const auto& [attention, factory] : nn::attention_methods()) {
      CAPTURE(family);
      CAPTURE(attention);
      const nn::ModelConfig config = small(family, attention);
      const bool blocks = attention == "blocks" || attention == "best-blocks";
      if (!config.shape().causal && blocks) continue;  // causal alone
      auto real = nn::make_model(config, 1);
      const nn::ParameterStore store(*real);
      const nn::MetaModel meta(config);
      CHECK(nn::parameter_count(*meta.model) == nn::parameter_count(*real));
      for (int64_t tokens : {1, 60, 150}) {  // of 60 tokens a mask keeps all that are visible
        CAPTURE(tokens);
        const auto counted = nn::forward_costs(*real, tokens);
        const auto costs = nn::forward_costs(*meta.model, tokens);
        CHECK(costs.contains("head") == meta.model->has_logits());
        // A column with one key more has more mass, so best-columns chooses it more often. The
        // buckets of a model's queries are not those of random ones.
        const bool loose =
            attention == "best-columns" || attention == "reformer" || attention == "scatterbrain";
        check_alike(costs, counted, tokens <= 64 ? 0 : loose ? 0.2 : 0.05);
      }
    }
  }
}

}  // namespace brine::test
