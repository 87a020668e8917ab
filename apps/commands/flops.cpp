// brine flops: multiply-adds and bytes of a forward pass by component, next to full attention.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/cli/terminal.h"
#include "apps/cli/unused_flags.h"
#include "data/io/json.h"
#include "nn/io/extend.h"
#include "nn/models/model_costs.h"

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

using Costs = std::map<std::string, Cost>;

Cost total(const Costs& costs) {
  Cost sum;
  for (const auto& [component, cost] : costs) {
    sum.macs += cost.macs;
    sum.bytes += cost.bytes;
  }
  return sum;
}

data::Json table_of(const Costs& costs) {
  data::Json out = data::Json::object();
  auto add = [&](const std::string& name, const Cost& cost) {
    out[name] = {{"multiply_adds", cost.macs}, {"bytes", cost.bytes}};
  };
  for (const auto& [component, cost] : costs) add(component, cost);
  add("all", total(costs));
  return out;
}

void print(const std::string& method, int64_t tokens, const Costs& costs) {
  const Cost all = total(costs);
  std::printf("%s, one sequence of %lld tokens\n", method.c_str(), (long long)tokens);
  std::printf("  %-18s %16s %16s %8s\n", "component", "multiply-adds", "bytes", "share");
  auto row = [&](const std::string& name, const Cost& cost) {
    std::printf("  %-18s %14.4g %16.4g %7.1f%%\n", name.c_str(), cost.macs, cost.bytes,
                100 * cost.macs / std::max(all.macs, 1.0));
  };
  for (const auto& [component, cost] : costs) row(component, cost);
  row("all", all);
}

int Flops::run(const RunContext& context) {
  nn::ModelConfig config = nn::load_config(model);
  const int64_t positions = config.shape().max_positions;
  tokens = tokens ? tokens : positions;
  if (tokens > positions) config = nn::extend_config(config, tokens);
  const nn::MetaModel own(config);
  refuse_unused_options(context, *own.model);
  const Costs costs = nn::forward_costs(*own.model, tokens, {.k = k, .query_skip = query_skip});
  nn::ModelConfig plain = config;
  plain.attention = "flash";
  const Costs quadratic = nn::forward_costs(*nn::MetaModel(plain).model, tokens);
  if (json) {
    data::Json out = {{"model", model},
                      {"tokens", tokens},
                      {"attention", config.attention},
                      {"costs", table_of(costs)},
                      {"flash", table_of(quadratic)}};
    std::cout << json_text(out) << std::endl;
    return 0;
  }
  print(config.attention, tokens, costs);
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
