// brine flops: multiply-adds and bytes of a forward pass by component, beside full attention.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/cli/terminal.h"
#include "apps/shared/training.h"
#include "data/io/json.h"
#include "nn/io/model_io.h"

namespace brine {
namespace {

struct Flops {
  std::string model;
  int64_t tokens = 0, k = 0, query_skip = 1;
  bool json = false;

  void describe(data::Schema& s) {
    s.field("model", model, "Model directory, run, or a config.json", {.required = true});
    s.field("tokens", tokens, "Length of the sequence; 0 = the model's positions", {.min = 0});
    s.field("k", k, "Kept keys per query and head; 0 = as trained", {.min = 0});
    s.field("query_skip", query_skip, "The estimator runs on every f-th query", {.min = 1});
    s.field("json", json, "Print one JSON object");
  }

  int run(const RunContext& context);
};

data::Json table_of(const nn::CostTable& costs) {
  data::Json out = data::Json::object();
  for (const auto& [component, line] : costs.lines()) {
    out[component] = {{"multiply_adds", line.macs}, {"bytes", line.bytes}};
  }
  out["all"] = {{"multiply_adds", costs.total().macs}, {"bytes", costs.total().bytes}};
  return out;
}

void print(const std::string& method, int64_t tokens, const nn::CostTable& costs) {
  const nn::CostLine all = costs.total();
  std::printf("%s, one sequence of %lld tokens\n", method.c_str(), (long long)tokens);
  std::printf("  %-18s %16s %16s %8s\n", "component", "multiply-adds", "bytes", "share");
  auto row = [&](const std::string& name, const nn::CostLine& line) {
    std::printf("  %-18s %14.4g %16.4g %7.1f%%\n", name.c_str(), line.macs, line.bytes,
                100 * line.macs / std::max(all.macs, 1.0));
  };
  for (const auto& [component, line] : costs.lines()) row(component, line);
  row("all", all);
}

int Flops::run(const RunContext& context) {
  const nn::ModelConfig config = nn::load_config(model);
  tokens = tokens ? tokens : config.shape().max_positions;
  auto blank = [](const nn::ModelConfig& of) {
    return nn::make_model(of, nn::Init{.random = {}, .blank = true});
  };
  auto costs_of = [&](const nn::ModelConfig& of, const nn::AttentionDials& dials) {
    return blank(of)->costs(tokens, dials);
  };
  refuse_idle_dials(context, *blank(config));
  const nn::CostTable own = costs_of(config, {.k = k, .query_skip = query_skip});
  nn::ModelConfig plain = config;
  plain.attention = "flash";
  const nn::CostTable quadratic = costs_of(plain, {});
  if (json) {
    data::Json out = {{"model", model},
                      {"tokens", tokens},
                      {"attention", config.attention},
                      {"costs", table_of(own)},
                      {"flash", table_of(quadratic)}};
    std::cout << json_text(out) << std::endl;
    return 0;
  }
  print(config.attention, tokens, own);
  if (!nn::is_full_attention(config.attention)) print("flash", tokens, quadratic);
  std::printf(
      "Components are named as `brine bench breakdown` names them; bytes: every op reads its "
      "inputs and writes its output once.\n");
  return 0;
}

const RegisterSubcommand<Flops> registration("flops",
                                             "Multiply-adds and bytes of a model by component");

}  // namespace
}  // namespace brine
