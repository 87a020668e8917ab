// brine eval: perplexity with its protocol, the scores of a task, with a teacher the mask recall;
// or a suite of tasks under several attention methods.
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/cli/ranks.h"
#include "apps/cli/unused_flags.h"
#include "apps/evaluation/print.h"
#include "apps/terminal/terminal.h"
#include "data/io/json.h"

namespace brine {
namespace {

struct Eval {
  std::string model;
  distill::Evaluation what;
  bool json = false;

  void describe(data::Schema& s) {
    s.field("model", model, "Model directory or run", {.required = true});
    what.describe(s);
    s.field("json", json, "Print one JSON object");
  }

  int run(const RunContext& context) {
    return run_divided(context, [&](Communicator& ranks) { return evaluate(context, ranks); });
  }

  int evaluate(const RunContext& context, Communicator& ranks) {
    refuse_mixed(context, what);
    what.seed = context.seed;
    what.text.ranks = &ranks;
    WarningList warnings(json);
    nn::LoadedModel m = distill::load_model(model, log_messages());
    const std::unique_ptr<data::Tokenizer> tokenizer = distill::tokenizer_of(m, log_messages());
    distill::use_attention(m, what.attention);
    refuse_unused_options(context, *m.model, !what.suite.suite.empty());
    const auto result = distill::evaluate(model, m, *tokenizer, what, log_messages());
    data::Json out = distill::to_json(result);
    if (const auto said = warnings.take(); !said.empty()) out["warnings"] = said;
    if (json) std::cout << json_text(out) << std::endl;
    if (!json) print_evaluation(result);
    return 0;
  }
};

const RegisterSubcommand<Eval> registration(
    "eval", "Perplexity and mask recall of a model",
    {"brine eval --model RUN --teacher TEACHER --data book.txt --k 576", "docs/evaluation.md"},
    Ranks::divided);

}  // namespace
}  // namespace brine
