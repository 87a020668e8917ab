// brine flops: multiply-adds and bytes of a forward pass by component, next to full attention.
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/cli/unused_flags.h"
#include "apps/flops/report.h"
#include "data/io/json.h"
#include "nn/io/extend.h"

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

  int run(const RunContext& context) {
    nn::ModelConfig config = nn::load_config(model);
    const int64_t positions = config.shape().max_positions;
    const int64_t length = tokens ? tokens : positions;
    if (length > positions) config = nn::extend_config(config, length);
    const nn::MetaModel meta(config);
    refuse_unused_options(context, *meta.model);
    const CostReport report =
        cost_report(config, *meta.model, length, {.k = k, .query_skip = query_skip});
    if (json) {
      std::cout << json_text(to_json(model, report)) << std::endl;
    } else {
      print(report);
    }
    return 0;
  }
};

const RegisterSubcommand<Flops> registration("flops",
                                             "Multiply-adds and bytes of a model by component",
                                             {"brine flops --model RUN --tokens 16384",
                                              "docs/guide.md"});

}  // namespace
}  // namespace brine
