// Costs of whole models on the meta device: golden numbers, any length, agreement with real passes.
#include "nn/models/model_costs.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "tensor/device/allocator.h"
#include "tests/gradcheck.h"

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

nn::ModelConfig config_of(const std::string& model, const std::string& attention) {
  Json json = sizes_of(model);
  json["brine"] = {{"format", 1}, {"attention", Json::parse(attention)}};
  return nn::from_hf_config(json, model);
}

struct Golden {
  const char* model;
  const char* attention;
  int64_t tokens;
  nn::RuntimeOptions options;
  std::map<std::string, std::pair<double, double>> costs;  // multiply-adds and bytes
};

// Computed from formulas, op by op, before costs were counted; what sea composes of primitives, as
// these count. An activation after a linear map is part of its product: it reads and writes nothing
// itself.
const Golden kGolden[] = {
    {"opt",
     R"({"method":"dense"})",
     2048,
     {},
     {{"attention", {77309411328, 10116661248}},
      {"head", {79071019008, 572555264}},
      {"mlp", {115964116992, 981651456}},
      {"projections", {57982058496, 1472348160}},
      {"rest", {0, 811751424}}}},
    {"opt",
     R"({"method":"sea"})",
     4096,
     {.k = 100, .query_skip = 3},
     {{"decoder", {27192360960, 2067964416}},
      {"gates", {150994944, 306720864}},
      {"head", {158142038016, 990674944}},
      {"mask", {0, 761560704}},
      {"mlp", {231928233984, 1736626176}},
      {"mu, nu", {17718312960, 3780550656}},
      {"output", {0, 759693312}},
      {"performer", {20426637312, 3026595936}},
      {"prior", {830877696, 412140096}},
      {"projections", {115964116992, 2831302656}},
      {"rest", {0, 1623349248}},
      {"sparse attention", {7458508800, 603979776}}}},
    {"opt",
     R"({"method":"sea"})",
     131072,
     {},
     {{"decoder", {2609192632320, 149790417408}},
      {"gates", {4831838208, 9814683744}},
      {"head", {5060545216512, 26914095104}},
      {"mask", {0, 21742110720}},
      {"mlp", {7421703487488, 48545058816}},
      {"mu, nu", {773094113280, 120801484800}},
      {"output", {0, 24310185984}},
      {"performer", {654095794176, 84356247648}},
      {"prior", {79725330432, 19629343296}},
      {"projections", {3710851743744, 87086481408}},
      {"rest", {0, 51942414336}},
      {"sparse attention", {154581663744, 19327352832}}}},
    {"opt",
     R"({"method":"recent","k":64})",
     4096,
     {.k = 16},
     {{"attention", {2406776832, 905969664}},
      {"head", {158142038016, 990674944}},
      {"mlp", {231928233984, 1736626176}},
      {"projections", {115964116992, 2831302656}},
      {"rest", {0, 1623349248}}}},
    {"opt350",
     R"({"method":"flash"})",
     193,
     {},
     {{"attention", {920174592, 75890688}},
      {"head", {4967677952, 142162304}},
      {"mlp", {38856032256, 995524608}},
      {"projections", {19428016128, 744554496}},
      {"rest", {202375168, 201428992}}}},
    {"bert",
     R"({"method":"sea","features":"softmax","mode":"per-query"})",
     2048,
     {},
     {{"decoder", {24461180928, 1588870656}},
      {"gates", {75497472, 153366624}},
      {"head", {49214914560, 377747688}},
      {"mask", {0, 339738624}},
      {"mlp", {115964116992, 981651456}},
      {"mu, nu", {12079595520, 1892966400}},
      {"output", {37748736, 784457088}},
      {"performer", {7474249728, 2719888608}},
      {"prior", {1245708288, 306709056}},
      {"projections", {57982058496, 1472348160}},
      {"rest", {0, 843208704}},
      {"sparse attention", {2415919104, 301989888}}}},
    {"classifier",
     R"({"method":"sea"})",
     511,
     {},
     {{"decoder", {6111313920, 399158784}},
      {"gates", {18837504, 38276064}},
      {"mask", {0, 84768768}},
      {"mlp", {28934406144, 415051776}},
      {"mu, nu", {3014000640, 476467200}},
      {"output", {9418752, 195853716}},
      {"performer", {1864912896, 329277024}},
      {"prior", {310818816, 76527936}},
      {"projections", {14467203072, 452468736}},
      {"rest", {0, 210505728}},
      {"sparse attention", {602800128, 75350016}}}},
    {"opt1300",
     R"({"method":"sea","k":7,"columns":128,"mu_scope":"token","prior":"none"})",
     131072,
     {},
     {{"decoder", {74217034874880, 1597772328960}},
      {"gates", {25769803776, 52344938688}},
      {"head", {13494787244032, 27842576384}},
      {"mask", {0, 183207134208}},
      {"mlp", {105553116266496, 260920246272}},
      {"mu, nu", {82463372083200, 904363401216}},
      {"output", {0, 129654325248}},
      {"performer", {3488510902272, 448556458176}},
      {"projections", {52776558133248, 465467867136}},
      {"rest", {0, 267362516992}},
      {"sparse attention", {90192248832, 103079215104}}}}};

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

TEST_CASE("costs: golden multiply-adds and bytes of models on the meta device") {
  for (const Golden& golden : kGolden) {
    CAPTURE(golden.model);
    CAPTURE(golden.attention);
    const nn::MetaModel meta(config_of(golden.model, golden.attention));
    const auto costs = nn::forward_costs(*meta.model, golden.tokens, golden.options);
    CHECK(costs.size() == golden.costs.size());
    for (const auto& [component, wanted] : golden.costs) {
      CAPTURE(component);
      REQUIRE(costs.contains(component));
      CHECK(costs.at(component).macs == wanted.first);
      CHECK(costs.at(component).bytes == wanted.second);
    }
  }
}

TEST_CASE("costs: a model of 1.3 billion parameters and 131,072 tokens takes no memory") {
  for (const char* attention : {R"({"method":"dense"})", R"({"method":"sea"})"}) {
    CAPTURE(attention);
    const auto start = std::chrono::steady_clock::now();
    const int64_t before = allocator_stats().live;
    reset_peak();
    const nn::MetaModel meta(config_of("opt1300", attention));
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
        CHECK(costs.size() == counted.size());
        CHECK(costs.contains("head") == meta.model->has_logits());
        for (const auto& [component, cost] : counted) {
          CAPTURE(component);
          REQUIRE(costs.contains(component));
          const bool rounded =
              tokens > 64 && (component == "mask" || component == "sparse attention");
          // A column with one key more has more mass, so best-columns chooses it more often. The
          // buckets of a model's queries are not those of random ones.
          const bool loose =
              attention == "best-columns" || attention == "reformer" || attention == "scatterbrain";
          const double share = !rounded ? 0 : loose ? 0.2 : 0.05;
          CHECK(std::fabs(costs.at(component).macs - cost.macs) <= share * cost.macs);
          CHECK(std::fabs(costs.at(component).bytes - cost.bytes) <= share * cost.bytes);
        }
      }
    }
  }
}

}  // namespace brine::test
