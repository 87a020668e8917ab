// The costs that `brine flops` foretells are those that the ops count.
#include "tensor/meter/cost_meter.h"

#include <cmath>
#include <set>

#include "nn/models/bert/bert.h"
#include "nn/models/model_config.h"
#include "nn/models/opt/opt.h"
#include "tests/nn/attention/contract.h"

namespace brine::test {
namespace {

// Costs by component of `run`, counted.
template <class F>
std::map<std::string, Cost> counted(F run) {
  NoGrad off;
  CostMeter meter;
  run();
  return meter.costs();
}

// Entries of a sparse mask are foretold from its budget, rows round it: a few percent there.
void check_costs(const nn::CostTable& foretold, const std::map<std::string, Cost>& costs,
                 const std::set<std::string>& rounded) {
  std::set<std::string> names;
  for (const auto& [component, line] : foretold.lines()) {
    CAPTURE(component);
    names.insert(component);
    REQUIRE(costs.contains(component));
    const Cost& real = costs.at(component);
    const double share = rounded.contains(component) ? 0.05 : 1e-12;
    CHECK(std::fabs(real.macs - line.macs) <= share * line.macs);
    CHECK(std::fabs(real.bytes - line.bytes) <= share * line.bytes);
  }
  for (const auto& [component, cost] : costs) {
    if (cost.macs == 0 && cost.bytes == 0) continue;
    CHECK_MESSAGE(names.contains(component), component << " was not foretold");
  }
}

nn::AttentionInput input(int64_t T, const nn::AttentionDials& dials) {
  return {.q = normal({1, kHeads, T, kSize}, 1, Dtype::f32),
          .k = normal({1, kHeads, T, kSize}, 2, Dtype::f32),
          .v = normal({1, kHeads, T, kSize}, 3, Dtype::f32),
          .hidden = {},
          .dials = dials};
}

nn::ModelConfig model_config(const std::string& family, const std::string& attention) {
  nn::ModelConfig c;
  c.model_type = family;
  if (family == "opt") {
    c.as<nn::OptConfig>() = {.vocab_size = 50,
                             .hidden_size = 48,
                             .num_hidden_layers = 2,
                             .num_attention_heads = 3,
                             .ffn_dim = 64,
                             .max_position_embeddings = 200};
  } else {
    c.as<nn::BertConfig>() = {.vocab_size = 50,
                              .hidden_size = 48,
                              .num_hidden_layers = 2,
                              .num_attention_heads = 3,
                              .intermediate_size = 64,
                              .max_position_embeddings = 200,
                              .masked_lm = true};
  }
  c.attention = attention;
  return c;
}

}  // namespace

TEST_CASE("costs of every method are foretold as they are counted") {
  int known = 0;
  const std::vector<std::map<std::string, std::string>> settings = {
      {},
      {{"decoder", "lean"}, {"columns", "16"}},
      {{"mu_scope", "token"}, {"prior", "none"}},
      {{"decoder_norm", "on"}, {"depth", "3"}, {"k", "7"}}};
  for (const auto& [name, factory] : nn::attention_methods()) {
    for (bool causal : {true, false}) {
      for (const auto& keys : settings) {
        for (int64_t skip : {1, 3}) {
          CAPTURE(name);
          CAPTURE(causal);
          CAPTURE(keys.size());
          std::optional<Block> block;
          try {
            block = make_block(name, causal, Dtype::f32, 5, 300, keys);
          } catch (const Error&) {
            continue;  // it refuses: the contract tests print why
          }
          const int64_t T = 193;
          nn::AttentionDials dials{.query_skip = block->module->traits().sparse ? skip : 1};
          nn::CostTable foretold;
          if (!block->module->add_cost(foretold, T, dials)) continue;
          ++known;
          nn::AttentionInput in = input(T, dials);
          in.visible.causal = causal;
          check_costs(foretold, counted([&] { block->module->forward(in); }),
                      {"mask", "sparse attention"});
        }
      }
    }
  }
  CHECK(known >= 20);
}

TEST_CASE("costs of a whole model are foretold as they are counted") {
  for (const std::string family : {"opt", "bert"}) {
    for (const std::string attention : {"dense", "flash", "sea"}) {
      CAPTURE(family);
      CAPTURE(attention);
      nn::ModelConfig config = model_config(family, attention);
      auto model = nn::make_model(config, 1);
      nn::ParameterStore store(*model);
      Tensor ids = Tensor::zeros({1, 150}, Dtype::i32);
      auto costs = counted([&] { model->logits(model->hidden({.ids = ids})); });
      check_costs(model->costs(150), costs, {"mask", "sparse attention"});
    }
  }
}

TEST_CASE("costs: backward is booked beside forward, times and memory are measured") {
  Block block = make_block("sea", true, Dtype::f32);
  nn::AttentionInput in = input(64, {});
  in.q = require_grad(in.q);
  CostMeter meter;
  CHECK_THROWS_WITH_AS(CostMeter{}, "cost meter: one is running already", Error);
  {
    Tensor y = block.module->forward(in);
    backward(y, Tensor::full(y.shape(), 1));
  }
  CHECK(meter.costs().at("decoder").ms > 0);  // no gradient comes through a causal mask
  for (const std::string part : {"performer", "mu, nu", "sparse attention", "output"}) {
    CAPTURE(part);
    REQUIRE(meter.costs().contains(part));
    CHECK(meter.costs().at(part).ms > 0);
    CHECK(meter.costs().at(part).peak > 0);
    CHECK(meter.costs().at(join("backward of ", part)).ms > 0);
  }
}

}  // namespace brine::test
