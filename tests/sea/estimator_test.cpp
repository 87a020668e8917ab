// The estimator: gradients, skipping, refusals; the settings of the block.
#include "sea/paper/paper_estimator.h"

#include <nlohmann/json.hpp>

#include "nn/models/model_config.h"
#include "nn/optim/parameter_store.h"
#include "tests/gradcheck.h"
#include "tests/messages.h"
#include "tests/refusals.h"
#include "tests/sea/estimators.h"

namespace brine::test {
namespace {

using sea::DecoderPreset;
using sea::Features;
using sea::MuScope;

std::string refusal(const nn::AttentionShape& shape, const sea::SeaConfig& config) {
  return message([&] { config.validate(shape); });
}

constexpr nn::AttentionShape kCausal{.heads = 2, .head_size = 8, .max_positions = 64};
constexpr nn::AttentionShape kEncoder{
    .heads = 2, .head_size = 8, .max_positions = 64, .causal = false};

}  // namespace

TEST_CASE("estimator: gradients of inputs and weights by finite differences") {
  for (MuScope scope : {MuScope::head, MuScope::token}) {
    sea::SeaConfig config{.keys = 4, .columns = 12, .mu_scope = scope};
    auto f = [&](In x) {
      nn::Init init{.random = {.seed = 7}, .dtype = Dtype::f64, .linear_std = 0.3};
      const auto owner = sea::make_estimator(init, kCausal, config);
      sea::Estimator& block = *owner;
      parameter_of(block, "mu.linear.weight") = x[3];
      parameter_of(block, "nu.weight") = x[4];
      parameter_of(block, "prior.gain") = x[5];
      parameter_of(block, "v_identity.table") = x[6];
      sea::Estimate e = block({x[0], x[1], x[2]}, {}, 1);
      return reshape(e.estimate, {-1});
    };
    nn::Init init{.random = {.seed = 7}, .dtype = Dtype::f64, .linear_std = 0.3};
    const auto start = sea::make_estimator(init, kCausal, config);
    INFO(name_of(scope, sea::kMuScopes));
    CHECK(gradcheck(f,
                    {normal({1, 2, 7, 8}, 1), normal({1, 2, 7, 8}, 2), normal({1, 2, 7, 8}, 3),
                     parameter_of(*start, "mu.linear.weight").detach(),
                     parameter_of(*start, "nu.weight").detach(), uniform({2}, 4, 0.5, 1.5),
                     parameter_of(*start, "v_identity.table").detach()},
                    {.step = 1e-6, .probes = 24}) < 2e-5);
  }
}

TEST_CASE("estimator: gradients of the learned and pooled prior by finite differences") {
  const sea::SeaConfig config{.columns = 5,
                              .decoder = DecoderPreset::none,
                              .prior = sea::Prior::learned,
                              .prior_features = 3,
                              .pooled_prior = true,
                              .gates = sea::Gates::head};
  const nn::AttentionShape shape{
      .heads = 4, .head_size = 4, .max_positions = 1, .kv_heads = 2, .rotary = true};
  auto block_of = [&](nn::Init& init) { return sea::make_estimator(init, shape, config); };
  for (int64_t skip : {1, 3}) {
    auto f = [&](In x) {
      nn::Init same{.random = {.seed = 7}, .dtype = Dtype::f64};
      const auto block = block_of(same);
      size_t at = 5;
      for (const auto& p : block->named_parameters()) p.parameter->value = x[at++];
      const sea::Estimate e = (*block)(
          {.q = x[0], .k = x[1], .v = x[2], .q_content = x[3], .k_content = x[4]}, {}, skip);
      return concat({reshape(e.scores, {1, -1}), reshape(e.gates, {1, -1})}, -1);
    };
    std::vector<Tensor> x = {normal({1, 4, 9, 4}, 1), normal({1, 2, 9, 4}, 2),
                             normal({1, 2, 9, 4}, 3), normal({1, 4, 9, 4}, 4),
                             normal({1, 2, 9, 4}, 5)};
    uint64_t seed = 6;
    nn::Init other{.random = {.seed = 7}, .dtype = Dtype::f64};
    const auto start = block_of(other);
    for (const auto& p : start->named_parameters()) {
      x.push_back(add(p.parameter->value.detach(),
                      normal(p.parameter->value.shape(), ++seed, Dtype::f64, 0, 0.2)));
    }
    CHECK(x.size() == 5 + 10);
    CHECK(gradcheck(f, x, {.probes = 24}) < 1e-5);
  }
}

TEST_CASE("estimator: the gates start at the sigmoid of gate_bias") {
  nn::Init init{.random = {.seed = 7}, .linear_std = 0};
  const auto owner =
      sea::make_estimator(init, kCausal, {.keys = 4, .columns = 12, .gate_bias = 2.5});
  sea::Estimator& block = *owner;
  Tensor x = normal({1, 2, 9, 8}, 1);
  for (double gate : block({x, x, x}, {}).gates.to_vector()) CHECK(gate == 2.5);
}

TEST_CASE("estimator: query skipping keeps the source rows and repeats them, causally") {
  NoGrad off;
  sea::SeaConfig config{.keys = 4, .columns = 12};
  nn::Init init{.random = {.seed = 7}};
  const auto owner = sea::make_estimator(init, kCausal, config);
  sea::Estimator& block = *owner;
  Tensor q = normal({1, 2, 22, 8}, 1), k = normal({1, 2, 22, 8}, 2), v = normal({1, 2, 22, 8}, 3);
  Tensor s = block({q, k, v}, {}, 4).scores;
  CHECK(s.shape() == Shape{1, 2, 22, 12});
  for (int64_t t = 0; t < 22; ++t) {
    CHECK(same_bits(s.slice(2, t, 1), s.slice(2, t / 4 * 4, 1)));
  }
  CHECK_FALSE(same_bits(s.slice(2, 3, 1), s.slice(2, 4, 1)));
  // A shorter sequence gives the same rows.
  Tensor part = block({q.slice(2, 0, 13), k.slice(2, 0, 13), v.slice(2, 0, 13)}, {}, 4).scores;
  CHECK(close_to_scale(part, s.slice(2, 0, 13).contiguous(), 1e-5));
}

TEST_CASE("decoder: a row of nu reaches as many later rows as the kernels span, and no more") {
  NoGrad off;
  constexpr int64_t width = sea::kChannelExpansion * 16 / sea::kWidthReduction, row = 10, reach = 6;
  nn::Init init{.random = {.seed = 7}, .dtype = Dtype::f64};
  const sea::MapDecoder decoder(init, 2, 16, true);
  Tensor x = normal({1, 2, 30, width}, 1, Dtype::f64), changed = x.clone();
  for (int64_t h = 0; h < 2; ++h) {
    double* at = changed.data<double>() + (h * 30 + row) * width;
    for (int64_t c = 0; c < width; ++c) at[c] = -3 * at[c] + double(c % 3);
  }
  Tensor a = decoder(x, {}), b = decoder(changed, {});
  for (int64_t t = 0; t < 30; ++t) {
    const bool same = same_bits(a.slice(2, t, 1), b.slice(2, t, 1));
    CHECK_MESSAGE(same == (t < row || t > row + reach), "row " << t);
  }
}

TEST_CASE("config: refusals name the setting") {
  using Config = sea::SeaConfig;
  CHECK(refusal(kCausal, Config{}) == "no error");
  CHECK(refusal(kEncoder, Config{}) == "no error");
  CHECK(refusal(kCausal, Config{.keys = 0}) == "sea: k is 0, must be at least 1");
  CHECK(refusal(kCausal, Config{.columns = 9}) == "sea: columns = 9 is not a multiple of 2");
  CHECK(refusal(kCausal, Config{.columns = 4}).find("too few for the decoder's LayerNorm") !=
        std::string::npos);
  CHECK(refusal(kEncoder, Config{.columns = 4}) == "no error");
  CHECK(refusal(kCausal, Config{.features = Features::softmax}).find("future keys") !=
        std::string::npos);
  CHECK(refusal(kCausal, Config{.mode = SelectMode::per_head}).find("later positions") !=
        std::string::npos);
  CHECK(refusal(kCausal, Config{.mode = SelectMode::per_batch}).find("later positions") !=
        std::string::npos);
  CHECK(refusal(kEncoder, Config{.mode = SelectMode::per_batch}) == "no error");
  check_says(refusal(kCausal, Config{.prior = sea::Prior::learned, .prior_features = 0}),
             {"sea", "prior_features", "0", "1"});
  CHECK(refusal(kCausal, Config{.prior_features = 0}) == "no error");  // nothing reads it
  // Without a decoder any number of columns is right.
  CHECK(refusal(kCausal, Config{.columns = 9, .decoder = DecoderPreset::none}) == "no error");
  CHECK(refusal(kEncoder, Config{.columns = 1, .decoder = DecoderPreset::none}) == "no error");
  nn::Init init{.random = {.seed = 7}};
  const auto owner =
      sea::make_estimator(init, {.heads = 1, .head_size = 8, .max_positions = 4}, {.columns = 12});
  sea::Estimator& block = *owner;
  Tensor x = normal({1, 1, 5, 8}, 1);
  CHECK_THROWS_WITH(block({x, x, x}, {}),
                    "linear_attention: 5 tokens, but the table has 4 positions");
  CHECK_THROWS_AS(block({x, x, x}, {.causal = false}), Error);
}

TEST_CASE(
    "config: fixed settings of earlier versions change nothing, with other values none loads") {
  const data::Json fixed = {
      {"oversample", 1},        {"pooled", 0.0},       {"width_reduction", 0},
      {"channel_expansion", 0}, {"token_stride", 0},   {"depth", 2},
      {"dilation", 1},          {"last_kernel", 3},    {"decoder_norm", "preset"},
      {"max_positions", 0},     {"redraw_interval", 0}};
  const data::Json others = {
      {"oversample", 4},        {"pooled", 0.5},       {"width_reduction", 4},
      {"channel_expansion", 2}, {"token_stride", 2},   {"depth", 3},
      {"dilation", 2},          {"last_kernel", 1},    {"decoder_norm", "on"},
      {"max_positions", 9},     {"redraw_interval", 7}};
  nn::ModelConfig config = nn::make_config("opt", data::Json::object());
  config.attention = "sea";
  const data::Json written = nn::to_hf_config(config, {});
  data::Json old = written;
  old["brine"]["attention"].update(fixed);
  nn::ModelConfig read = nn::from_hf_config(old, "old");
  CHECK(nn::to_hf_config(read, {}) == written);
  for (const auto& [key, value] : others.items()) {
    old["brine"]["attention"][key] = value;
    CHECK_REFUSES(nn::from_hf_config(old, "old"), "old: attention." + key + " = ",
                  "earlier version");
    old["brine"]["attention"][key] = fixed.at(key);
  }
}

TEST_CASE("config: a preset of the block sets what was not given, before it or after it") {
  auto made = [](const std::vector<std::pair<std::string, std::string>>& words) {
    sea::SeaConfig config;
    data::Schema schema = data::schema_of(config);
    for (const auto& [key, value] : words) schema.set_text(key, {value});
    return std::pair(config, schema.to_json());
  };
  const auto [light, json] = made({{"preset", "light"}});
  CHECK(light.decoder == DecoderPreset::none);
  CHECK(light.gates == sea::Gates::head);
  CHECK(light.prior == sea::Prior::learned);
  CHECK(light.pooled_prior);
  CHECK(light.prior_units == 4);
  CHECK(light.columns == 256);
  CHECK(light.gate_bias == 4);
  CHECK(light.keys == 64);
  CHECK(json["preset"] == "light");
  CHECK(json["columns"] == 256);
  for (bool first : {true, false}) {
    std::vector<std::pair<std::string, std::string>> words = {
        {"columns", "64"}, {"prior", "performer"}, {"gate_bias", "1"}};
    words.insert(first ? words.begin() : words.end(), {"preset", "light"});
    const sea::SeaConfig mine = made(words).first;
    CHECK(mine.columns == 64);
    CHECK(mine.prior == sea::Prior::performer);
    CHECK(mine.gate_bias == 1);
    CHECK(mine.decoder == DecoderPreset::none);
    CHECK(mine.pooled_prior);
  }
  const sea::SeaConfig paper = made({{"preset", "paper"}}).first;
  CHECK(paper.decoder == DecoderPreset::paper);
  CHECK(paper.prior == sea::Prior::none);
  // Keys that a config.json lacks are those of its preset.
  nn::ModelConfig now = nn::from_hf_config(
      data::Json::parse(R"({"model_type": "opt", "vocab_size": 9, "hidden_size": 8,
          "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 8,
          "max_position_embeddings": 16, "brine": {"format": 1, "attention":
          {"method": "sea", "preset": "light", "k": 8}}})"),
      "config.json");
  data::Schema stored;
  now.describe_attention(stored);
  CHECK(stored.to_json()["attention"]["prior_units"] == 4);
  CHECK(stored.to_json()["attention"]["columns"] == 256);
  // Written out and read again, it is the same, whatever the preset means then.
  sea::SeaConfig again;
  data::schema_of(again).set_all(made({{"preset", "light"}, {"columns", "32"}}).second);
  CHECK(again.columns == 32);
  CHECK(again.decoder == DecoderPreset::none);
  CHECK_FALSE(made({}).second.contains("preset"));
}

}  // namespace brine::test
