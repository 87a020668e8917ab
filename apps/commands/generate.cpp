// brine generate: continues prompts.
#include "apps/cli/unused_flags.h"
#include "apps/generate/output.h"
#include "apps/terminal/terminal.h"
#include "distill/runs/training_run.h"

namespace brine {
namespace {

struct Generate {
  std::string model;
  nn::TextGeneration what;
  distill::OtherAttention attention;
  Dtype weights = Dtype::f32;
  bool json = false, dry_run = false;

  void describe(data::Schema& s) {
    s.field("model", model, "Model directory or run", {.required = true});
    what.describe(s);
    attention.describe(s);
    s.choice("weights", weights, nn::kWeightTypes, nn::kWeightsHelp);
    s.field("json", json, "Print one JSON object");
    s.field("dry_run", dry_run, "Print the memory that it takes, and generate nothing");
  }

  int run(const RunContext& context) {
    const std::vector<std::string> prompts = what.prompts();
    if (what.how.temperature == 0) refuse_unused(context, {"top_k", "top_p"}, "at temperature 0");
    WarningList warnings(json);
    nn::LoadedModel m = distill::load_model(model, log_messages());
    check(m.config.shape().causal, "generate: ", m.directory,
          " is an encoder; it does not continue text");
    nn::hold_weights_in(weights, m);
    distill::use_attention(m, attention);
    refuse_unused_options(context, *m.model);
    const std::unique_ptr<data::Tokenizer> tokenizer = distill::tokenizer_of(m, log_messages());
    if (dry_run) refuse_unused(context, {"json"}, "with --dry-run");
    auto generation = begin(m, *tokenizer, what, prompts, context.seed, dry_run);
    if (dry_run) return 0;
    log_unapplied(m, what, generation);
    const std::vector<std::string> texts = nn::texts_of(generation, *tokenizer);
    if (json) {
      generation.run();
      print_json(generation, m, {model, what, texts, warnings.take()});
    } else {
      run_and_print(generation, texts);
    }
    log_ends(generation, what.tokens, m.config.shape().max_positions,
             nn::end_tokens(m, *tokenizer));
    if (!what.save_state.empty()) generation.save(what.save_state, m.hash());
    return 0;
  }
};

const RegisterSubcommand<Generate> registration("generate", "Continue prompts",
                                                {"brine generate --model RUN --prompt Hello",
                                                 "docs/guide.md"});

}  // namespace
}  // namespace brine
