// brine sweep: one model under a grid of k and query skipping, into a table and a TSV file.
#include <filesystem>
#include <iostream>

#include "apps/cli/ranks.h"
#include "apps/cli/unused_flags.h"
#include "apps/terminal/terminal.h"
#include "data/io/file_io.h"
#include "distill/evaluation/sweep_text.h"
#include "distill/runs/training_run.h"

namespace brine {
namespace {

struct Sweep {
  std::string model;
  distill::TextSweep what;

  void describe(data::Schema& s) {
    s.field("model", model, "Model directory or run", {.required = true});
    what.describe(s);
  }

  int run(const RunContext& context) {
    return run_divided(context, [&](Communicator& ranks) { return measure(context, ranks); });
  }

  int measure(const RunContext& context, Communicator& ranks) {
    check(what.out.empty() || !std::filesystem::exists(what.out), what.out, ": exists already");
    if (!what.out.empty()) data::check_target(what.out);
    check(!what.floors || !what.grid.teacher.empty(), "sweep: --floors needs --teacher MODEL");
    what.grid.ranks = &ranks;
    nn::LoadedModel m = distill::load_model(model, log_messages());
    distill::use_attention(m, what.attention);
    check(m.model->attention_traits().sparse, "sweep: attention '", m.config.attention,
          "' keeps every key");
    refuse_unused_options(context, *m.model);
    const std::unique_ptr<data::Tokenizer> tokenizer = distill::tokenizer_of(m, log_messages());
    distill::sweep_text(m, *tokenizer, what, std::cout, log_messages());
    return 0;
  }
};

const RegisterSubcommand<Sweep> registration(
    "sweep", "Evaluate a grid of k and query skipping",
    {"brine sweep --model RUN --teacher TEACHER --data book.txt --k 576 1088 --floors",
     "docs/evaluation.md"},
    Ranks::divided);

}  // namespace
}  // namespace brine
