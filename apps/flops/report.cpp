// What `brine flops` counts and prints.
#include "apps/flops/report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace brine {
namespace {

constexpr const char* kFull = "flash";  // the registered method that stands for full attention

data::Json table_of(const nn::Costs& costs) {
  data::Json out = data::Json::object();
  auto add = [&](const std::string& name, const Cost& cost) {
    out[name] = {{"multiply_adds", cost.macs}, {"bytes", cost.bytes}};
  };
  for (const auto& [component, cost] : costs) add(component, cost);
  add("all", nn::total(costs));
  return out;
}

void print_table(const std::string& method, int64_t tokens, const nn::Costs& costs) {
  const Cost all = nn::total(costs);
  std::printf("%s, one sequence of %lld tokens\n", method.c_str(), (long long)tokens);
  std::printf("  %-18s %16s %16s %8s\n", "component", "multiply-adds", "bytes", "share");
  auto row = [&](const std::string& name, const Cost& cost) {
    std::printf("  %-18s %14.4g %16.4g %7.1f%%\n", name.c_str(), cost.macs, cost.bytes,
                100 * cost.macs / std::max(all.macs, 1.0));
  };
  for (const auto& [component, cost] : costs) row(component, cost);
  row("all", all);
}

}  // namespace

CostReport cost_report(const nn::ModelConfig& config, nn::Model& model, int64_t tokens,
                       const nn::RuntimeOptions& options) {
  CostReport report{.attention = config.attention,
                    .tokens = tokens,
                    .model = nn::forward_costs(model, tokens, options),
                    .full = {}};
  nn::ModelConfig full = config;
  full.attention = kFull;
  report.full = nn::forward_costs(*nn::MetaModel(full).model, tokens);
  return report;
}

data::Json to_json(const std::string& name, const CostReport& report) {
  return {{"model", name},
          {"tokens", report.tokens},
          {"attention", report.attention},
          {"costs", table_of(report.model)},
          {kFull, table_of(report.full)}};
}

void print(const CostReport& report) {
  print_table(report.attention, report.tokens, report.model);
  if (!nn::is_full_attention(report.attention)) print_table(kFull, report.tokens, report.full);
  std::printf(
      "Components are named as `brine bench breakdown` names them; bytes: every op reads its "
      "inputs and writes its output once.\n");
}

}  // namespace brine
